"""Costs from a run: medians of what its ops took, on their lanes and on their devices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from types import MappingProxyType

from steptrace.cost.quantity import seconds_in_words
from steptrace.diag.timeline import NothingMeasuredError
from steptrace.ir import Op, Program, kinds_of
from steptrace.simulate import TRAINER, Event, Span
from steptrace.simulate.record import TRAINS
from steptrace.simulate.waits import DeviceWait, device_waits

SKIPPED = 2
"""Steps at the beginning of a run that say nothing: they compile."""

UPDATES = frozenset({"update", "apply_deferred_update"})
"""Kinds of ops whose work on the device is an update."""

WHOLE: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "fwd_bwd": ("stage_fwd_bwd", "fwd_bwd_staged"),
        "update": ("apply_deferred_update",),
        "get_metrics": ("start_metrics", "fetch_metrics"),
        "save_checkpoint": ("snapshot_checkpoint", "write_checkpoint"),
        "sync_weights": ("copy_weights", "transfer_weights", "apply_weights"),
    }
)
"""The parts that a schedule may run in place of an op: together they take what the op takes."""

MUST_BE_SEEN = TRAINS | UPDATES | {"old_logps"}
"""Kinds of ops whose work on the device takes time, so that a run in which nobody saw it says nothing of them."""

WATCHED = "seen by a thread that waits for its results"
WAITED = "what was waited for behind its call"
"""How the work of a device is seen."""

_SAMPLES, _APART, _APART_S = 3, 0.05, 2e-5


@dataclass(frozen=True, slots=True)
class Figure:
    """A time that was measured.

    Attributes:
      seconds: the median.
      count: of how many instances.
      spread: from the first to the last quarter of them, in seconds.
      how: what was measured, in words.
    """

    seconds: float
    count: int
    spread: tuple[float, float]
    how: str

    def __str__(self) -> str:
        low, high = map(seconds_in_words, self.spread)
        return f"median of {self.count}{f', half of them {low} to {high}' if self.count > 1 else ''}: {self.how}"


@dataclass(frozen=True, slots=True)
class Measured:
    """What an op took.

    Attributes:
      issue: of its call on its lane, waits for devices and other lanes left out.
      work: of its device; None for an op that sends none.
    """

    issue: Figure
    work: Figure | None


@dataclass(frozen=True, slots=True)
class Profile:
    """What the ops of a run took.

    Attributes:
      ops: by kind, or by id where several ops of a kind differ in their origin.
      firsts: of the first micro-batch, where it differs from the others.
      unknown: by op of the program, why nothing is known of it.
      micro_batches: of a step: the median, the fewest and the most.
      steps: the first and the last step that were counted.
      shared: kinds of ops whose work the trainer's device did, though its row has another.
    """

    ops: Mapping[str, Measured]
    firsts: Mapping[str, Measured]
    unknown: Mapping[str, str]
    micro_batches: tuple[int, int, int]
    steps: tuple[int, int]
    shared: tuple[str, ...] = ()


def profile_of(
    events: Sequence[Event],
    spans: Sequence[Span],
    program: Program,
    source: Program,
    *,
    skip: int = SKIPPED,
    seen: str = WATCHED,
) -> Profile:
    """What the ops of a run took, the first steps left out.

    Args:
      events, spans: of the run.
      program: what was run.
      source: the program as it is written, whose ops `plan` asks for.
      skip: steps that are left out.
      seen: how the work of devices was seen, in words.

    Raises:
      NothingMeasuredError: there was no step behind them.
    """
    begun = [event.step for event in events if event.step >= 0]
    first = min(begun, default=0) + skip
    steps = sorted({span.step for span in spans if span.step >= first} | {step for step in begun if step >= first})
    if not steps:
        raise NothingMeasuredError(
            f"of {len(set(begun))} steps the first {skip} compile, and no other was run", help="run more of them"
        )
    taken = _taken(events, spans, first)
    keys = _keys(program)
    found, firsts = {}, {}
    for key, ids in keys.items():
        samples = [one for id in ids for one in taken.get(id, ())]
        kind = next(op.kind for op in program.ops() if op.id in ids)
        if not samples or (kind in MUST_BE_SEEN and all(one.work is None for one in samples)):
            continue
        apart = _apart([one for one in samples if one.micro == 0], [one for one in samples if one.micro != 0], seen)
        found[key] = _measured([one for one in samples if one.micro != 0] if apart else samples, seen)
        if apart:
            firsts[key] = apart
    _add_fused_update(found, spans, first)
    whole = {**found, **_wholes(found)}
    calls: dict[str, bool] = {}  # by op as it is written, whether it or a part of it ran
    for op in program.ops():
        written = op.id if op.origin is None else op.origin.op
        calls[written] = calls.get(written, False) or op.id in taken
    unknown = {op.id: _why(op, calls.get(op.id)) for op in source.ops() if not {op.id, op.kind} & whole.keys()}
    rows = kinds_of(program)
    shared = {span.kind for span in spans if span.device == TRAINER and rows[span.kind].device not in ("", TRAINER)}
    counted = (steps[0], steps[-1])
    return Profile(whole, firsts, unknown, _counts(events, first), counted, tuple(sorted(shared)))


@dataclass(frozen=True, slots=True)
class _Sample:
    """One instance: its call without waits, or with them where they are not told apart; its work, None if not seen."""

    micro: int | None
    call: float
    waited: bool
    work: float | None


def _taken(events: Sequence[Event], spans: Sequence[Span], first: int) -> dict[str, list[_Sample]]:
    """By op, its instances from a step on."""
    waits = {wait.event: wait for wait in device_waits(events, spans)}
    own: dict[tuple[str, int, int | None], Span] = {(s.op, s.step, s.micro): s for s in spans if not s.what}
    found: dict[str, list[_Sample]] = defaultdict(list)
    for place, event in enumerate(events):
        if event.step >= first:
            span = own.get((event.op, event.step, event.micro))
            found[event.op].append(_sample(event, span, waits.get(place), spans))
    return found


def _sample(event: Event, span: Span | None, wait: DeviceWait | None, spans: Sequence[Span]) -> _Sample:
    begin = event.start
    if wait is not None and wait.side == "first":
        begin = max(begin, spans[wait.span].end)
    whole, call, work = event.end - event.start, event.end - begin, None
    hidden = wait is not None and (wait.side == "last" or begin >= event.end)
    if span is not None:
        work = span.end - span.start if span.end > event.end else 0.0
        if event.kind in UPDATES and span.end <= event.end:  # the call waits for its own work
            work = span.end - max(span.start, begin)
            call -= work
    return _Sample(event.micro, whole if hidden else max(0.0, call), hidden, work)


def _keys(program: Program) -> dict[str, tuple[str, ...]]:
    """The tables of the file, with the ops that each is of: one for a kind, more where a kind has several origins."""
    by_kind: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for op in program.ops():
        by_kind[op.kind][op.origin.op if op.origin is not None else op.id].append(op.id)
    found: dict[str, tuple[str, ...]] = {}
    sync = {op.id for op in program.prologue}
    for kind, origins in by_kind.items():
        stepped = {origin: ids for origin, ids in origins.items() if not set(ids) <= sync}
        found[kind] = tuple(id for ids in origins.values() for id in ids)
        if len(stepped) > 1:
            found |= {id: (id,) for ids in stepped.values() for id in ids}
    return found


def _apart(first: list[_Sample], others: list[_Sample], seen: str) -> Measured | None:
    """What the first micro-batch takes, where that is not what the others take."""
    if min(len(first), len(others)) < _SAMPLES:
        return None
    mine, theirs = _measured(first, seen), _measured(others, seen)
    pairs = [(mine.issue, theirs.issue)]
    if mine.work is not None and theirs.work is not None:
        pairs.append((mine.work, theirs.work))
    return mine if any(_differ(a, b) for a, b in pairs) else None


def _differ(a: Figure, b: Figure) -> bool:
    away = abs(a.seconds - b.seconds)
    noise = (a.spread[1] - a.spread[0] + b.spread[1] - b.spread[0]) / 2
    return away > max(_APART_S, _APART * max(a.seconds, b.seconds), noise)


def _measured(samples: list[_Sample], seen: str) -> Measured:
    free = [one.call for one in samples if not one.waited]
    calls = free or [min(one.call for one in samples)]
    how = "its call" if free else "the shortest call: each waited for the device within it, so it is an upper bound"
    if len(free) < len(samples) and free:
        how = f"its call, without {len(samples) - len(free)} that cannot be told from a wait for the device"
    works = [one.work for one in samples if one.work is not None]
    if not works:
        return Measured(_figure(calls, how), None)
    return Measured(_figure(calls, how), _figure(works, seen if any(works) else "done when the call returned"))


def _figure(values: Sequence[float], how: str) -> Figure:
    low, _, high = quantiles(values, n=4, method="inclusive") if len(values) > 1 else (values[0],) * 3
    return Figure(median(values), len(values), (low, high), how)


def _add_fused_update(found: dict[str, Measured], spans: Sequence[Span], first: int) -> None:
    """The update that a training call makes has no call of its own."""
    fused = [span.end - span.start for span in spans if span.what == "update" and span.step >= first]
    if fused and "update" not in found:
        within = Figure(0.0, len(fused), (0.0, 0.0), "made within the step's last training call")
        found["update"] = Measured(within, _figure(fused, WATCHED))


def _wholes(found: Mapping[str, Measured]) -> dict[str, Measured]:
    """What ops would take that only ran in parts, by those parts, where all of them are known."""
    return {
        op: Measured(
            _sum([found[part].issue for part in parts], parts),
            _sum([one for part in parts if (one := found[part].work) is not None], parts)
            if any(found[part].work is not None for part in parts)
            else None,
        )
        for op, parts in WHOLE.items()
        if op not in found and all(part in found for part in parts)
    }


def _sum(figures: list[Figure], parts: tuple[str, ...]) -> Figure:
    low, high = (sum(one.spread[end] for one in figures) for end in (0, 1))
    count = min(one.count for one in figures)
    return Figure(sum(one.seconds for one in figures), count, (low, high), f"that of {' and '.join(parts)}")


def _why(op: Op, ran: bool | None) -> str:
    """Why nothing is known of an op, by whether it ran, whole or in parts; None for one that has no call at all."""
    if ran is None:
        return "it is done within other calls: a run without this pipeline measures it"
    if not ran:
        return "did not run in the steps that were counted"
    if op.kind in MUST_BE_SEEN:
        return (
            "its work on the device was not seen; the trainer offers nothing to wait for: `--timed` (`timed=True`) "
            "measures it"
        )
    return "only parts of it ran"


def _counts(events: Sequence[Event], first: int) -> tuple[int, int, int]:
    """How many micro-batches a step had: the median, the fewest and the most."""
    by_step: dict[int, set[int | None]] = defaultdict(set)
    for event in events:
        if event.step >= first and event.kind in TRAINS:
            by_step[event.step].add(event.micro)
    counts = [len(micros) for micros in by_step.values()] or [0]
    return round(median(counts)), min(counts), max(counts)
