"""What a schedule holds in memory: at most, and over the time of a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from steptrace.cost.quantity import size_in_words
from steptrace.diag.base import Note
from steptrace.diag.cost import OverMemoryError
from steptrace.diag.loc import Loc
from steptrace.ir import Program, ResourceKind
from steptrace.simulate import TRAINER, Event, Run

HOST = "host"
"""The memory of the machine that runs the loop."""

COPIES = "trainer.copies"
"""The room that copies of the parameters share, where a schedule has a budget for them."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """How something is held: what takes hold of it, what lets go of it, its pieces by size, where, in which room."""

    takes: tuple[str, ...]
    frees: tuple[str, ...]
    pieces: tuple[str, ...]
    where: str
    pool: str = ""


_HOLDS: Mapping[str, _Rule] = {
    "batch": _Rule(("take", "stream_mb"), ("free",), ("batch",), HOST),
    "weight copies": _Rule(("copy_weights",), ("transfer_weights", "apply_weights"), ("params",), TRAINER, COPIES),
    "checkpoint copies": _Rule(
        ("snapshot_checkpoint",), ("write_checkpoint",), ("params", "optimizer"), TRAINER, COPIES
    ),
    "staged": _Rule(("stage_fwd_bwd",), ("fwd_bwd_staged", "attempt_staged"), ("micro_batch",), TRAINER),
}


@dataclass(frozen=True, slots=True)
class Held:
    """Something that is held in memory.

    Attributes:
      what: in a word.
      most: how many pieces at a time, at most.
      bytes: of all of them; None where the cost file does not say how large one is.
      where: whose memory it is: ``host``, or a device.
      room: how many pieces there may be at a time of all that share its room; None where there is no such budget.
    """

    what: str
    most: int
    bytes: float | None
    where: str = HOST
    room: int | None = None


def memory_of(run: Run, sizes: Mapping[str, float], program: Program | None = None) -> tuple[Held, ...]:
    """What a run holds at most: steps on the host, copies on the trainer, micro-batches that are shipped ahead.

    Args:
      run: a run in virtual time.
      sizes: bytes of a piece, by name (`steptrace.cost.SIZES`).
      program: the schedule; where it has a budget for copies, that is told too.
    """
    found = []
    for what, rule in _HOLDS.items():
        most = _most(run.events, rule)
        if most:
            size = _size(rule, sizes)
            room = _room(program, rule.pool)
            found.append(Held(what, most, None if size is None else most * size, rule.where, room))
    return tuple(found)


def bytes_of(held: tuple[Held, ...]) -> float:
    """All that may be held at a time, as far as sizes are known.

    What is held for different reasons counts together, whatever the times in the run were, for with other times it may
    meet; unless a budget keeps it apart: then the largest pieces that it has room for.
    """
    total = sum(one.bytes or 0.0 for one in held if one.room is None)
    pieces = [(one.bytes or 0.0) / one.most for one in held if one.room is not None for _ in range(one.most)]
    rooms = [one.room for one in held if one.room is not None]
    return total + sum(sorted(pieces, reverse=True)[: max(rooms, default=0)])


def check_memory(held: tuple[Held, ...], room: float, loc: Loc | None = None) -> None:
    """Refuses a schedule that holds more than ``room`` bytes; says what it holds.

    Raises:
      OverMemoryError: it does.
    """
    if bytes_of(held) <= room:
        return
    notes = [
        Note(f"{one.most} x {one.what}: {size_in_words(one.bytes)} of {one.where} memory")
        for one in held
        if one.bytes is not None
    ]
    kept = [one for one in held if one.room is not None]
    if kept:
        notes.append(Note(f"no more than {kept[0].room} of {' and '.join(one.what for one in kept)} at a time"))
    apart = not kept and sum(one.what.endswith("copies") for one in held) > 1
    raise OverMemoryError(
        f"the schedule may hold {size_in_words(bytes_of(held))} at a time, and there is room for {size_in_words(room)}",
        loc=loc,
        notes=tuple(notes),
        help="memory-budget{copies=1} lets copies take turns" if apart else "leave out the pass that holds the most",
    )


def memory_over_time(run: Run, sizes: Mapping[str, float]) -> dict[str, tuple[tuple[float, float], ...]]:
    """By whose memory it is: the moments at which what is held changes, in seconds, with the bytes held from then on.

    What has no known size is left out, and what is not let go of within the run is held to its end.
    """
    changes: dict[str, dict[float, float]] = defaultdict(lambda: defaultdict(float))
    for rule in _HOLDS.values():
        size = _size(rule, sizes)
        for begun, over in _spans(run.events, rule) if size else ():
            changes[rule.where][begun] += size or 0.0
            if over is not None:
                changes[rule.where][over] -= size or 0.0
    found: dict[str, tuple[tuple[float, float], ...]] = {}
    for where, by_moment in changes.items():
        level, levels = 0.0, []
        for moment in sorted(by_moment):
            level += by_moment[moment]
            if by_moment[moment]:
                levels.append((moment, level))
        found[where] = tuple(levels)
    return found


def _size(rule: _Rule, sizes: Mapping[str, float]) -> float | None:
    known = [sizes[piece] for piece in rule.pieces if piece in sizes]
    return sum(known) if len(known) == len(rule.pieces) else None


def _room(program: Program | None, pool: str) -> int | None:
    resource = program.resource_table().get(pool) if program is not None and pool else None
    budgeted = resource is not None and resource.kind is ResourceKind.SLOT
    return resource.capacity or None if resource is not None and budgeted else None


def _spans(events: tuple[Event, ...], rule: _Rule) -> Iterator[tuple[float, float | None]]:
    """By step, from the end of what takes hold to the end of what lets go; None where nothing does."""
    begun: dict[int, float] = {}
    over: dict[int, float] = {}
    for event in events:
        if event.kind in rule.takes:
            begun[event.step] = min(begun.get(event.step, event.end), event.end)
        elif event.kind in rule.frees:
            over[event.step] = max(over.get(event.step, 0.0), event.end)
    yield from ((begun[step], over.get(step)) for step in begun)


def _most(events: tuple[Event, ...], rule: _Rule) -> int:
    """How many steps' pieces are held at a time, of those that are let go of."""
    whole = [(begun, over) for begun, over in _spans(events, rule) if over is not None]
    moments = sorted([*((begun, 1) for begun, _ in whole), *((over, -1) for _, over in whole)])
    now = most = 0
    for _, change in moments:
        now += change
        most = max(most, now)
    return most
