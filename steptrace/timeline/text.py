"""Recordings as text: a row for each lane and device, time going right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from steptrace.cost.quantity import seconds_in_words
from steptrace.simulate import Event, Span
from steptrace.timeline.idle import gaps_of
from steptrace.timeline.recording import Recording, short

_LEGEND = (
    "op.micro-batch@step, by initials where there is little room; | begins an op; ~ waits for a device; "
    ". is nothing to do"
)


def text_of(recording: Recording, *, width: int = 120, first: int | None = None, steps: int = 2) -> str:
    """A few steps of a run, to the scale of time, as text that ends with a line feed.

    What takes less than a column of time is not shown.

    Args:
      recording: the run.
      width: columns.
      first: the step to begin with, by default the first one that is settled.
      steps: how many to show.
    """
    begins = recording.begins()
    if not begins:
        return f"{recording.origin}: nothing was run\n"
    known = list(begins)
    first = known[min(len(known) - 1, 2 if len(known) > 3 else 1)] if first is None else first
    start = begins.get(first, next(iter(begins.values())))
    bars = recording.bars()
    end = begins[first + steps] if first + steps in begins else max(bar.end for bar in bars)
    rows = [("lane", name) for name in recording.lanes()] + [("device", name) for name in recording.devices()]
    margin = max(len(name) for _, name in rows) + 2
    scale = max(10, width - margin) / max(end - start, 1e-12)
    waits = {arrow.target: arrow.end for arrow in recording.arrows if arrow.kind == "device"}
    head = f"{recording.origin}: {recording.program}{f' under {recording.pipeline}' if recording.pipeline else ''}"
    lines = [f"{head}, steps {first} to {first + steps - 1}, a column is {seconds_in_words(1 / scale)}"]
    for what, name in rows:
        mine = [(at, bar) for at, bar in enumerate(bars) if _on(bar, what, name)]
        cells = _row(mine, waits, start, scale, max(10, width - margin))
        lines.append(f"{name:<{margin}}{cells}".rstrip())
    return "\n".join([*lines, *_gaps(recording, start, end), _LEGEND]) + "\n"


def _on(bar: Event | Span, what: str, name: str) -> bool:
    return what == "lane" and bar.lane == name if isinstance(bar, Event) else what == "device" and bar.device == name


def _row(
    bars: Sequence[tuple[int, Event | Span]], waits: dict[int, float], start: float, scale: float, width: int
) -> str:
    cells = ["."] * width
    for at, bar in sorted(bars, key=lambda one: one[1].end - one[1].start):
        a, b = round((bar.start - start) * scale), round((bar.end - start) * scale)
        if b <= a or b <= 0 or a >= width:
            continue
        until = round((waits.get(at, bar.start) - start) * scale)
        text = f"|{_token(bar, b - a - 1)}".ljust(b - a, "=")
        for column, letter in enumerate(text, a):
            if 0 <= column < width:
                cells[column] = "~" if letter == "=" and column < until else letter
    return "".join(cells)


def _token(bar: Event | Span, room: int) -> str:
    """A bar in so many columns: in full, or by the initials of its op."""
    name = short(bar.op)
    initials = "".join(word[0] for word in name.split("_") if word)
    micro = "" if bar.micro is None else f".{bar.micro}"
    shorter = (
        f"{name}{micro}@{bar.step}",
        f"{name}{micro}",
        name,
        f"{initials}{micro}@{bar.step}",
        f"{initials}{micro}",
    )
    return next((text for text in shorter if len(text) <= room and (not micro or text != name)), initials[:room])


def _gaps(recording: Recording, start: float, end: float) -> Iterator[str]:
    for gap in gaps_of(recording):
        if gap.boundary is not None and start <= gap.start < end:
            yield f"{gap.device} idle for {seconds_in_words(gap.seconds)} at the boundary behind step {gap.boundary}"
