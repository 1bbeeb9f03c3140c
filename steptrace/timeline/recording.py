"""A run as it is drawn: instances of ops on their lanes, work on its devices, and what waited for what."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from steptrace.diag.loc import Loc
from steptrace.ir import Program
from steptrace.ir.printer import written_path
from steptrace.lower import Plan
from steptrace.simulate import LINK, TRAINER, Event, Run, Span
from steptrace.simulate.record import TRAINS
from steptrace.simulate.waits import device_waits, lane_waits

ArrowKind = Literal["lane", "device", "call"]

UNTIL: Mapping[str, str] = MappingProxyType({"first": "until it is done", "last": "at its end, until it is done"})
"""What a call is said to wait for, in front of what is its own or behind it."""

_SAME = 1e-9
"""Share of the length of a run by which times may be off, which are sums of others."""


@dataclass(frozen=True, slots=True)
class Arrow:
    """From one bar to another: what came first, and what then went on.

    Bars are counted through: the events, and behind them the spans.

    Attributes:
      source, target: the bars.
      start, end: when the arrow leaves and arrives, in seconds.
      kind: ``lane`` where an op waited for one of another lane, ``device`` where a call waited for work, ``call`` from
        a call to the work that it sent.
      why: the reason in a word, and what it is about; "" for a call.
    """

    source: int
    target: int
    start: float
    end: float
    kind: ArrowKind
    why: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """Where an op was written.

    Attributes:
      place: file and line.
      code: what stands there, "" where the file cannot be read.
    """

    place: str
    code: str = ""


@dataclass(frozen=True, slots=True)
class Recording:
    """A run.

    Attributes:
      program: name of the program.
      pipeline: the pipeline that it ran under, "" for none.
      origin: ``planned`` for a run in virtual time, ``measured`` for a real one.
      events: instances of ops, lane by lane in order of time.
      spans: what devices did, device by device in order of time.
      arrows: what waited for what.
      lines: by op, where it was written.
      dropped: instances and work that were not kept, since the memory for them is bounded: the oldest.
      note: what else is to be known of it.
    """

    program: str
    pipeline: str
    origin: Literal["planned", "measured"]
    events: tuple[Event, ...]
    spans: tuple[Span, ...]
    arrows: tuple[Arrow, ...] = ()
    lines: Mapping[str, Line] = field(default_factory=lambda: MappingProxyType({}))
    dropped: int = 0
    note: str = ""

    def bars(self) -> tuple[Event | Span, ...]:
        """Events and spans, as arrows count them."""
        return (*self.events, *self.spans)

    def lanes(self) -> tuple[str, ...]:
        """The lanes, the one that the caller runs first."""
        names = dict.fromkeys(event.lane for event in self.events)
        return tuple(sorted(names, key=lambda name: name != "host"))

    def devices(self) -> tuple[str, ...]:
        """The devices, the trainer's last."""
        names = dict.fromkeys(span.device for span in self.spans)
        return tuple(sorted(names, key=lambda name: (name == TRAINER, name != LINK, name)))

    def steps(self) -> tuple[int, ...]:
        """The steps, those before and behind the run left out."""
        return tuple(sorted({span.step for span in self.spans} or {event.step for event in self.events}))

    def begins(self) -> dict[int, float]:
        """By step, when its first micro-batch was begun on the trainer's device; without such work, its first op."""
        found: dict[int, float] = {}
        trained = [span for span in self.spans if span.device == TRAINER and span.kind in TRAINS]
        for one in trained or self.events:
            if one.step >= 0:
                found[one.step] = min(found.get(one.step, one.start), one.start)
        return dict(sorted(found.items()))


def recording_of(run: Run, plan: Plan, *, pipeline: str = "", note: str = "") -> Recording:
    """A run in virtual time; devices that no work takes time on are left out."""
    events = tuple(sorted(run.events, key=lambda event: (event.lane, event.start, event.end)))
    working = {span.device for span in run.spans if span.end > span.start}
    spans = tuple(span for span in run.spans if span.device in working)
    arrows = arrows_of(events, spans, plan)
    return Recording(plan.program.name, pipeline, "planned", events, spans, arrows, lines_of(plan.program), note=note)


def arrows_of(events: Sequence[Event], spans: Sequence[Span], plan: Plan) -> tuple[Arrow, ...]:
    """What waited for what, in a run of a plan."""
    found = [
        Arrow(one.before, one.after, min(events[one.before].end, (at := events[one.after].start)), at, "lane", one.why)
        for one in lane_waits(events, plan)
    ]
    found += [
        Arrow(len(events) + one.span, one.event, (end := spans[one.span].end), end, "device", UNTIL[one.side])
        for one in device_waits(events, spans)
    ]
    return (*found, *_calls(events, spans))


def _calls(events: Sequence[Event], spans: Sequence[Span]) -> Iterator[Arrow]:
    """From each call to the work that it sent."""
    sent: dict[tuple[str, int, int | None], int] = {}
    for place, event in enumerate(events):
        sent[event.op, event.step, event.micro] = place
    for place, span in enumerate(spans):
        call = sent.get((span.op, span.step, span.micro))
        if call is not None:
            at = min(max(span.issued, events[call].start), events[call].end)
            yield Arrow(call, len(events) + place, at, max(at, span.start), "call")


def lines_of(program: Program) -> dict[str, Line]:
    """By op, where it was written."""
    return {op.id: line_of(op.loc) for op in program.ops() if op.loc is not None}


def short(op: str) -> str:
    """An op's id as it is drawn beside its micro-batch: without what marks the copy for the first one."""
    return op.partition(".first")[0]


def line_of(loc: Loc) -> Line:
    """A place, with what stands there."""
    return Line(str(Loc(written_path(loc.file), loc.line, loc.column)), loc.source())


def problems(recording: Recording) -> list[str]:
    """What cannot be of a run, in words: bars that overlap on a lane or device, arrows to nothing or back in time."""
    bars = recording.bars()
    slack = _SAME * max([1e-3, *(bar.end for bar in bars)])
    return [*_rows(recording, slack), *_arrows(recording, slack)]


def _rows(recording: Recording, slack: float) -> Iterator[str]:
    rows: dict[str, list[Event | Span]] = defaultdict(list)
    for event in recording.events:
        rows[f"lane {event.lane}"].append(event)
    for span in recording.spans:
        rows[f"device {span.device}"].append(span)
    for row, bars in rows.items():
        latest = None
        for bar in sorted(bars, key=lambda bar: (bar.start, bar.end)):
            if not bar.start <= bar.end:
                yield f"{row}: `{bar.op}` of step {bar.step} ends before it starts"
            if latest is not None and bar.start < latest.end - slack:
                yield f"{row}: `{bar.op}` of step {bar.step} starts while `{latest.op}` of step {latest.step} runs"
            if latest is None or bar.end > latest.end:
                latest = bar


def _arrows(recording: Recording, slack: float) -> Iterator[str]:
    bars = recording.bars()
    for arrow in recording.arrows:
        if not (0 <= arrow.source < len(bars) and 0 <= arrow.target < len(bars)):
            yield f"an arrow goes from bar {arrow.source} to bar {arrow.target} of {len(bars)}"
            continue
        source, target = bars[arrow.source], bars[arrow.target]
        outside = not source.start - slack <= arrow.start <= source.end + slack
        outside |= not target.start - slack <= arrow.end <= target.end + slack
        if outside or arrow.end < arrow.start - slack:
            yield f"the arrow from `{source.op}`@{source.step} to `{target.op}`@{target.step} does not touch them"
