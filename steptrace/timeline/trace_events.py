"""Recordings in the trace event format, which Perfetto and chrome://tracing open."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from steptrace.simulate import Event, Span
from steptrace.timeline.recording import Arrow, Recording, short

_INSIDE = 1e-3
"""A flow leaves a bar this share of its length in front of its end: at the end itself it would not be its own."""


def trace_of(recordings: Sequence[Recording]) -> dict[str, Any]:
    """Each recording as a process, each lane and device as a thread of it, what waited for what as flows.

    Times are in microseconds. A flow has an ``s`` in the bar that came first and an ``f`` in the one that went on.
    """
    found: list[dict[str, Any]] = []
    for number, recording in enumerate(recordings, 1):
        found += _process(recording, number, sum(event["ph"] == "s" for event in found))
    return {"traceEvents": found, "displayTimeUnit": "ms"}


def _process(recording: Recording, pid: int, flows: int) -> Iterator[dict[str, Any]]:
    rows = [*(("lane", name) for name in recording.lanes()), *(("device", name) for name in recording.devices())]
    threads = {row: at for at, row in enumerate(rows)}
    title = f"{recording.origin}: {recording.program}{f' under {recording.pipeline}' if recording.pipeline else ''}"
    yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": title}}
    for (what, name), at in threads.items():
        shown = name if what == "lane" or ("lane", name) not in threads else f"{name} (device)"
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": at, "args": {"name": shown}}
        yield {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": at, "args": {"sort_index": at}}
    bars = recording.bars()
    tids = [threads[_row(bar)] for bar in bars]
    for bar, tid in zip(bars, tids, strict=True):
        yield _bar(recording, bar, pid, tid)
    for number, arrow in enumerate(recording.arrows, flows + 1):
        yield from _flow(arrow, bars, tids, pid, number)


def _row(bar: Event | Span) -> tuple[str, str]:
    return ("lane", bar.lane) if isinstance(bar, Event) else ("device", bar.device)


def _bar(recording: Recording, bar: Event | Span, pid: int, tid: int) -> dict[str, Any]:
    line = recording.lines.get(bar.op)
    facts = {"op": bar.op, "step": bar.step, "micro_batch": bar.micro, "line": line.place if line else ""}
    if isinstance(bar, Event):
        facts |= {"waited_for": bar.held_by, "waited_ms": bar.held_s * 1e3}
    return {
        "ph": "X",
        "name": named(bar),
        "cat": f"step {bar.step}",
        "pid": pid,
        "tid": tid,
        "ts": bar.start * 1e6,
        "dur": (bar.end - bar.start) * 1e6,
        "args": facts,
    }


def named(bar: Event | Span) -> str:
    """A bar by its op, step and micro-batch."""
    what = f" {bar.what}" if isinstance(bar, Span) and bar.what else ""
    micro = "" if bar.micro is None else f".{bar.micro}"
    return f"{short(bar.op)}{micro}@{bar.step}{what}"


def _flow(
    arrow: Arrow, bars: Sequence[Event | Span], tids: list[int], pid: int, number: int
) -> Iterator[dict[str, Any]]:
    source = bars[arrow.source]
    leaves = min(arrow.start, source.end - _INSIDE * (source.end - source.start))
    shared = {"name": arrow.why or "call", "cat": arrow.kind, "id": number, "pid": pid}
    yield {**shared, "ph": "s", "tid": tids[arrow.source], "ts": leaves * 1e6}
    yield {**shared, "ph": "f", "bp": "e", "tid": tids[arrow.target], "ts": max(leaves, arrow.end) * 1e6}
