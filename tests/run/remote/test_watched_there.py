"""The device of a trainer in a process of its own is watched there, and its work is known by the ops that sent it."""

from __future__ import annotations

import time

import pytest
from remote_parts import Due, Tokens, bind

import steptrace
from steptrace.run.record import Recorder
from steptrace.run.remote.part import RemotePart
from steptrace.simulate import TRAINER
from steptrace.testing.hash_parts import HalfReference, HashRollout
from steptrace.timeline.recording import Recording
from steptrace.workers import remote

PROGRAM = 'grpo{prompts=4, samples=3, staleness=1, saves="may_fail_late"}'


def recorded(target: str, pipeline: str, recorder: Recorder) -> tuple[str, Recording]:
    parts = {"trainer": remote(Tokens), "rollout": remote(HashRollout), "reference": remote(HalfReference)}
    options = {"steps": 5, "pipeline": pipeline, "target": target, "stall_s": 60.0, "around": [recorder]}
    result = steptrace.run(PROGRAM, {**bind(), **parts}, **options)
    return result.params_digest, recorder.recording()


def work(recording: Recording) -> set[tuple[str, int, int | None, str]]:
    """The trainer's work, without the op that sent it: where a micro-batch was staged, that depends on the time."""
    return {(span.kind == "update", span.step, span.micro, span.what) for span in recording.spans}


@pytest.mark.parametrize("pipeline", ["", "pipelined-boundary-unstaged"])
def test_what_a_device_did_elsewhere_is_what_it_does_here(pipeline: str):
    before = time.perf_counter()
    params, there = recorded("process", pipeline, Recorder())
    assert recorded("inline", pipeline, recorder := Recorder())[0] == params
    assert work(there) == work(recorder.recording())
    assert {span.device for span in there.spans} == {TRAINER}
    seconds = time.perf_counter() - before
    calls = {(event.op, event.step, event.micro): event for event in there.events}
    for span in there.spans:
        call = calls[span.op, span.step, span.micro]
        assert call.start <= span.start < span.end < seconds  # one clock for both processes
    needed = sum(0.01 if span.op == "update" else 0.02 for span in there.spans)
    assert sum(span.end - span.start for span in there.spans) >= 0.9 * needed
    for span, after in zip(there.spans, there.spans[1:], strict=False):
        assert span.end <= after.start


class NeverDone(Tokens):
    """What its calls have sent is never done."""

    def _work(self, seconds):
        return Due(time.perf_counter() + 3600)


def test_a_device_that_is_never_done_is_not_waited_for_for_ever():
    parts = {"trainer": remote(NeverDone), "rollout": remote(HashRollout), "reference": remote(HalfReference)}
    options = {"steps": 2, "target": "process", "stall_s": 4.0, "around": [recorder := Recorder()]}
    assert steptrace.run(PROGRAM, {**bind(), **parts}, **options).steps == 2
    assert recorder.recording().spans == ()
    assert recorder.recording().dropped > 2  # each step's calls and update


class FailsInStep2:
    def on_step_begin(self, step):
        if step == 2:
            raise ZeroDivisionError("on purpose")


def failing(trainer) -> Recording:
    parts = {"trainer": remote(trainer), "rollout": remote(HashRollout), "reference": remote(HalfReference)}
    bound, recorder = {**bind(), **parts, "callbacks": [FailsInStep2()]}, Recorder()
    with pytest.raises(ZeroDivisionError, match="on purpose"):
        steptrace.run(PROGRAM, bound, steps=9, target="process", stall_s=60.0, around=[recorder])
    return recorder.recording()


def test_behind_a_failure_what_a_device_did_elsewhere_is_told():
    recording = failing(Tokens)
    assert {span.step for span in recording.spans} == {0, 1}
    assert recording.dropped == 0


def test_behind_a_failure_a_device_that_is_never_done_is_hardly_waited_for(monkeypatch: pytest.MonkeyPatch):
    waited, plain = [], RemotePart.watched_calls

    def watched_calls(part, moment_s=None):
        waited.append(moment_s)
        return plain(part, moment_s)

    monkeypatch.setattr(RemotePart, "watched_calls", watched_calls)
    recording = failing(NeverDone)
    assert waited == [1.0]
    assert recording.spans == ()
    assert recording.dropped > 2


def test_control_a_device_that_nobody_watches_has_done_nothing():
    class Blind(Recorder):
        def ended(self, session):
            """Does not ask."""

    assert recorded("process", "", Blind())[1].spans == ()
