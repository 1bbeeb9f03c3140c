"""Recordings: what is drawn is of a run, every wait has its arrow, and gaps have the lengths worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from timeline_runs import planned, unexplained

from steptrace.timeline import gaps_of, problems
from steptrace.timeline.idle import boundary_idle
from steptrace.timeline.recording import UNTIL

PIPELINES = ("", "pipelined-boundary", "async-everything")


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_a_run_has_no_problems_and_no_wait_without_its_arrow(pipeline: str):
    recording = planned(pipeline)
    assert problems(recording) == []
    assert unexplained(recording) == []
    assert recording.lines["fwd_bwd"].code.startswith("step.fwd_bwd(")
    assert recording.lines["fwd_bwd"].place.startswith("steptrace/programs/grpo.py:")


def test_control_a_missing_arrow_is_seen():
    recording = planned("pipelined-boundary")
    (first, *_) = [arrow for arrow in recording.arrows if arrow.kind == "lane"]
    fewer = replace(recording, arrows=tuple(arrow for arrow in recording.arrows if arrow is not first))
    assert unexplained(fewer) == [str(recording.events[first.target])]


def test_control_an_event_outside_its_lane_is_seen():
    recording = planned("pipelined-boundary")
    events = tuple(replace(event, lane="host") if event.op == "pack" else event for event in recording.events)
    assert any("lane host" in one for one in problems(replace(recording, events=events)))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"target": 10**6}, "an arrow goes from bar"),
        ({"start": -5.0}, "does not touch them"),
        ({"end": 10**6}, "does not touch them"),
    ],
)
def test_control_an_arrow_that_is_off_is_seen(change, said: str):
    recording = planned()
    arrow = replace(recording.arrows[0], **change)
    (found,) = problems(replace(recording, arrows=(arrow,)))
    assert said in found


def test_control_work_that_overlaps_is_seen():
    recording = planned()
    trained = [at for at, span in enumerate(recording.spans) if span.device == "trainer" and span.end > span.start]
    longer = replace(recording.spans[trained[0]], end=recording.spans[trained[1]].start + 1)
    spans = tuple(longer if at == trained[0] else span for at, span in enumerate(recording.spans))
    assert any("device trainer" in one for one in problems(replace(recording, spans=spans)))


def test_gaps_by_hand():
    """As written: log 3, pack 2 and the first call's 1 second stand between the update and the next micro-batch."""
    recording = planned()
    assert [gap.seconds for gap in gaps_of(recording) if gap.boundary is not None] == pytest.approx([6.0] * 4)
    assert boundary_idle(recording) == pytest.approx({0: 6.0, 1: 6.0, 2: 6.0, 3: 6.0})
    assert boundary_idle(planned("pipelined-boundary"))[2] == pytest.approx(0.0)


def test_begins_and_steps_by_hand():
    assert planned().begins() == pytest.approx({step: 3.0 + 40.0 * step for step in range(5)})
    assert planned().lanes() == ("host",)
    assert planned("pipelined-boundary").lanes() == ("host", "packer")
    assert planned().devices() == ("trainer",)


def test_what_a_call_waits_for():
    """Two calls may be in flight, so the third one waits for the first; metrics wait for the update."""
    recording = planned()
    bars = recording.bars()
    found = {
        (str(bars[arrow.target]), f"{bars[arrow.source].op}.{bars[arrow.source].micro}", arrow.why)
        for arrow in recording.arrows
        if arrow.kind == "device" and bars[arrow.target].step == 2
    }
    assert found == {
        ("fwd_bwd@(2, 2)", "fwd_bwd.0", UNTIL["last"]),
        ("get_metrics@2", "update.None", UNTIL["first"]),
    }
