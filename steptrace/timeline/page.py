"""Recordings as a page without a network: lanes as rows, steps in colour, waits as arrows, idle gaps with lengths."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from itertools import pairwise
from statistics import median
from typing import Any

from steptrace.cost.quantity import seconds_in_words
from steptrace.simulate import TRAINER, Event, Span
from steptrace.timeline.idle import boundary_idle, gaps_of
from steptrace.timeline.recording import UNTIL, Recording

COMPILES = {"planned": 1, "measured": 2}
"""Steps at the beginning of a run that its figures leave out: until it has settled, and those that compile."""

_DIGITS = 9


def page_of(recordings: Sequence[Recording]) -> str:
    """The page, as HTML; several recordings stand below one another on one time axis.

    All that it needs is in it: data as JSON in which no character ends the element that holds it, style and script. Its
    policy forbids to load anything.
    """
    names, origins = (dict.fromkeys(getattr(one, what) for one in recordings) for what in ("program", "origin"))
    title = f"{' and '.join(names)}: {' and '.join(origins)}"
    return (
        _asset("page.html")
        .replace("@TITLE@", html.escape(title))
        .replace("@STYLE@", _asset("page.css"))
        .replace("@SCRIPT@", _asset("page.js"))
        .replace("@DATA@", embedded([_panel(one) for one in recordings]))
    )


def embedded(data: object) -> str:
    """Data as JSON that may stand within a script element: what could end it, or a comment, is written by number."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


@cache
def _asset(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")


def _panel(recording: Recording) -> dict[str, Any]:
    """A recording as the script reads it; times in seconds."""
    rows = [*(("lane", name) for name in recording.lanes()), *(("device", name) for name in recording.devices())]
    ops = list(dict.fromkeys(bar.op for bar in recording.bars()))
    return {
        "origin": recording.origin,
        "program": recording.program,
        "pipeline": recording.pipeline,
        "note": recording.note,
        "dropped": recording.dropped,
        "rows": [{"name": name, "device": what == "device"} for what, name in rows],
        "ops": [_op(recording, op) for op in ops],
        "bars": [_bar(bar, rows, ops) for bar in recording.bars()],
        "arrows": [
            [one.source, one.target, _short(one.start), _short(one.end), one.kind, one.why] for one in recording.arrows
        ],
        "waits": _waits(recording),
        "gaps": [
            [rows.index(("device", gap.device)), _short(gap.start), _short(gap.end), gap.boundary]
            for device in recording.devices()
            if device == TRAINER
            for gap in gaps_of(recording, device)
        ],
        "begins": {str(step): _short(begin) for step, begin in recording.begins().items()},
        "idle": {str(step): _short(seconds) for step, seconds in boundary_idle(recording).items()},
        "figures": figures_of(recording),
    }


def _op(recording: Recording, op: str) -> list[str]:
    line = recording.lines.get(op)
    return [op, line.place, line.code] if line else [op, "", ""]


def _bar(bar: Event | Span, rows: list[tuple[str, str]], ops: list[str]) -> list[Any]:
    """Row, op, step, micro-batch, start, end, and when a lane came to it; of work, what it is."""
    at = rows.index(("lane", bar.lane) if isinstance(bar, Event) else ("device", bar.device))
    more = _short(bar.reached) if isinstance(bar, Event) else bar.what
    return [at, ops.index(bar.op), bar.step, bar.micro, _short(bar.start), _short(bar.end), more]


def _waits(recording: Recording) -> dict[str, list[float]]:
    """By bar, from when to when its call waited for a device."""
    bars = recording.bars()
    sent = {arrow.source: arrow.start for arrow in recording.arrows if arrow.kind == "call"}
    found = {}
    for arrow in recording.arrows:
        if arrow.kind == "device":
            own_first = arrow.why == UNTIL["last"]
            begin = sent.get(arrow.target, arrow.end) if own_first else bars[arrow.target].start
            found[str(arrow.target)] = [_short(min(begin, arrow.end)), _short(arrow.end)]
    return found


def figures_of(recording: Recording) -> list[list[str]]:
    """What is told of a run as a whole: names and values in words."""
    skip = COMPILES[recording.origin]
    begins = list(recording.begins().items())[skip:]
    found = [["steps", str(len(recording.begins()))]]
    if len(begins) > 1:
        lengths = [later - earlier for (_, earlier), (_, later) in pairwise(begins)]
        found.append(["a step", seconds_in_words(median(lengths))])
    idle = [seconds for step, seconds in boundary_idle(recording).items() if any(step == known for known, _ in begins)]
    if recording.spans and idle:
        found.append(["trainer idle at a boundary", seconds_in_words(median(idle))])
    if len(begins) > 1:
        whole = begins[-1][1] - begins[0][1]
        within = [gap for gap in gaps_of(recording) if begins[0][1] <= gap.start and gap.end <= begins[-1][1]]
        if recording.spans and whole:
            found.append(["trainer busy", f"{1 - sum(gap.seconds for gap in within) / whole:.1%}"])
    return found


def _short(seconds: float) -> float:
    return round(seconds, _DIGITS)
