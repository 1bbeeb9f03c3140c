"""Traces: spans of a row nest, flows pair up and touch a span at both ends."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import pytest
from timeline_runs import planned

from steptrace.timeline import trace_of

Events = list[dict[str, Any]]


def flaws(events: Events) -> list[str]:
    """What a viewer of traces could not draw."""
    rows: dict[tuple[int, int], Events] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            rows[event["pid"], event["tid"]].append(event)
    return [*_nesting(rows), *_flows(events, rows)]


def _nesting(rows: dict[tuple[int, int], Events]) -> list[str]:
    found = []
    for row, spans in rows.items():
        open_ends: list[float] = []
        for span in sorted(spans, key=lambda one: (one["ts"], -one["dur"])):
            while open_ends and open_ends[-1] <= span["ts"] + 1e-3:
                open_ends.pop()
            if open_ends and span["ts"] + span["dur"] > open_ends[-1] + 1e-3:
                found.append(f"{span['name']} of row {row} crosses the end of another")
            open_ends.append(span["ts"] + span["dur"])
    return found


def _flows(events: Events, rows: dict[tuple[int, int], Events]) -> list[str]:
    found = []
    flows: dict[int, dict[str, Any]] = defaultdict(dict)
    for event in events:
        if event["ph"] in "sf":
            if event["ph"] in flows[event["id"]]:
                found.append(f"flow {event['id']} has two {event['ph']}")
            flows[event["id"]][event["ph"]] = event
            inside = [
                s
                for s in rows[event["pid"], event["tid"]]
                if s["ts"] <= event["ts"] + 1e-3 <= s["ts"] + s["dur"] + 2e-3
            ]
            if not inside:
                found.append(f"flow {event['id']} touches nothing at its {event['ph']}")
    found += [f"flow {id} is alone" for id, ends in flows.items() if len(ends) != 2]
    return found + [f"flow {i} goes back" for i, e in flows.items() if len(e) == 2 and e["f"]["ts"] < e["s"]["ts"]]


@pytest.mark.parametrize("pipeline", ["", "pipelined-boundary", "async-everything"])
def test_a_trace_can_be_drawn(pipeline: str):
    recording = planned(pipeline)
    events = trace_of([recording])["traceEvents"]
    assert flaws(events) == []
    assert sum(event["ph"] == "X" for event in events) == len(recording.bars())
    assert sum(event["ph"] == "s" for event in events) == len(recording.arrows)
    assert json.loads(json.dumps(events)) == events


def test_two_runs_are_two_processes():
    events = trace_of([planned(), planned("pipelined-boundary")])["traceEvents"]
    assert flaws(events) == []
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == ["planned: grpo", "planned: grpo under pipelined-boundary"]


@pytest.mark.parametrize(
    ("ph", "change", "said"),
    [("f", None, "is alone"), ("s", {"ts": -1e9}, "touches nothing"), ("f", {"tid": 99}, "touches nothing")],
)
def test_control_a_flow_that_is_off_is_seen(ph: str, change, said: str):
    events = trace_of([planned()])["traceEvents"]
    at = next(at for at, event in enumerate(events) if event["ph"] == ph)
    events[at : at + 1] = [] if change is None else [{**events[at], **change}]
    assert any(said in flaw for flaw in flaws(events))


def test_control_spans_that_cross_are_seen():
    events = trace_of([planned()])["traceEvents"]
    at = next(at for at, event in enumerate(events) if event["ph"] == "X" and event["dur"] > 1e6)
    events[at] = {**events[at], "dur": events[at]["dur"] + 1.5e6}
    assert any("crosses" in flaw for flaw in flaws(events))
