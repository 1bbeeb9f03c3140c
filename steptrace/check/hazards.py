"""Edges from conflicting accesses: from the last writer and the readers since, not from all pairs.

A step is walked through twice, so that the second walk sees what the step before leaves behind; the body of a loop
over micro-batches is walked through twice for the same reason. In the second walk every access gets an edge from each
earlier access that it conflicts with, unless one in between is ordered after the one and before the other. One
in between only counts if it is there whenever one of the two is: a loop may run zero times, and a peeled op is missing
in a step without micro-batches. An op whose condition is false is there all the same: it keeps its place and passes
the order on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby

from steptrace.check.access import EARLIER_THAN, Location, Mode, Pairing, Touch, locations_of
from steptrace.check.edge import Edge, EdgeKind
from steptrace.check.units import ALWAYS_PRESENT, Units
from steptrace.ir.resource import ResourceKind


@dataclass(frozen=True, slots=True)
class _Visit:
    """One access in the walk.

    Attributes:
      touch: the access.
      step: the step it belongs to, relative to the walk.
      round: the round of its loop over micro-batches, 0 outside.
      order: its place in the walk.
    """

    touch: Touch
    step: int
    round: int
    order: int


class _Walk:
    """The accesses so far that later ones still need an edge from."""

    def __init__(self, units: Units, location: Location, *, persists: bool, by_micro: bool = False) -> None:
        self.units = units
        self.location = location
        self.later = location.later_than()
        self.dominated = _DOMINATED if self.later is EARLIER_THAN else _dominated(self.later)
        self.persists = persists
        self.by_micro = by_micro
        self.live: dict[Mode, dict[tuple[str, str], _Visit]] = {mode: {} for mode in Mode}
        self.running: dict[str, dict[str, _Visit]] = {}
        self.order = 0

    def visit(self, touch: Touch, step: int, round: int, emit: bool) -> Iterator[Edge]:
        """Goes past one access; yields the edges that end there."""
        self.order += 1
        now = _Visit(touch, step, round, self.order)
        if emit:
            sources = [
                source
                for mode, live in self.live.items()
                if touch.mode in self.later[mode]
                for source in live.values()
                if self._conflict(source, now)
            ]
            for source in sources:
                if len(sources) == 1 or not any(self._passes(source, between, now) for between in sources):
                    yield self._edge(source, now)
            if touch.awaits:
                yield from self._awaited(now)
        self._forget(now)
        self.live[touch.mode][self._key(now), touch.target] = now
        if touch.writes and touch.unit.device:
            self._start(now)

    def _key(self, now: _Visit) -> str:
        """Under what an access is kept: the next one of the same unit takes its place.

        Not so for an arm of a choice: the other arm follows it in later rounds only, and comes behind the next one.
        """
        id = now.touch.unit.id
        return f"{id}@{now.step}.{now.round}" if id in self.units.arms else id

    def _ordered(self, source: _Visit, now: _Visit) -> bool:
        return now.touch.mode in self.later[source.touch.mode] and self._conflict(source, now)

    def _conflict(self, one: _Visit, other: _Visit) -> bool:
        """Whether the two instances are ordered at all, given that their modes are."""
        same_step = one.step == other.step
        a, b = one.touch, other.touch
        if a.unit is b.unit and same_step and one.round == other.round:
            return False
        if same_step and one.round == other.round and b.unit.id in self.units.arms.get(a.unit.id, ()):
            return False
        in_loop = same_step and a.unit.loop is not None and a.unit.loop == b.unit.loop
        return self.by_micro or not (in_loop and _micro(a) is not None and _micro(b) is not None)

    def _passes(self, source: _Visit, between: _Visit, now: _Visit) -> bool:
        """Whether an access in between orders the two ends, in every step that has both."""
        if source.order >= between.order or not self._ordered(source, between):
            return False
        wanted = between.touch.unit.presence
        if wanted == ALWAYS_PRESENT:
            return True
        with_source = between.step == source.step and source.touch.unit.presence.implies(wanted)
        return with_source or (between.step == now.step and now.touch.unit.presence.implies(wanted))

    def _forget(self, now: _Visit) -> None:
        """Drops what every later access is ordered after by way of this one."""
        if _micro(now.touch) is not None and not self.by_micro:
            return
        for mode in self.dominated[now.touch.mode]:
            live = self.live[mode]
            gone = [key for key, old in live.items() if self._conflict(old, now) and self._there_with(now, old)]
            for key in gone:
                del live[key]

    def _there_with(self, now: _Visit, source: _Visit) -> bool:
        wanted = now.touch.unit.presence
        return wanted == ALWAYS_PRESENT or (now.step == source.step and source.touch.unit.presence.implies(wanted))

    def _start(self, now: _Visit) -> None:
        """Notes work that is running on a device; a device finishes in the order of issue."""
        running = self.running.setdefault(now.touch.unit.device, {})
        for id, source in list(running.items()):
            if self._ordered(source, now) and self._there_with(now, source):
                del running[id]
        running[self._key(now)] = now

    def _awaited(self, now: _Visit) -> Iterator[Edge]:
        for running in self.running.values():
            for source in running.values():
                if self._ordered(source, now):
                    yield self._edge(source, now)

    def _edge(self, source: _Visit, now: _Visit) -> Edge:
        a, b = source.touch, now.touch
        distance = now.step - source.step
        inside = distance == 0 and a.unit.loop is not None and a.unit.loop == b.unit.loop
        return Edge(
            a.unit.id,
            b.unit.id,
            distance,
            now.round - source.round if inside else None,
            _kind(self.location, a, b),
            _what(self.location, a, b),
            "done" if b.awaits and a.writes else a.unit.event,
            self.persists,
            _undeclared(a, b),
        )


def _dominated(later: Mapping[Mode, frozenset[Mode]]) -> dict[Mode, list[Mode]]:
    """For each way of access, those that need no edges of their own once it follows them."""
    return {mode: [other for other in Mode if mode in later[other] and later[other] <= later[mode]] for mode in Mode}


_DOMINATED = _dominated(EARLIER_THAN)


def hazard_edges(units: Units) -> Iterator[Edge]:
    """The edges from conflicting accesses, capacities aside."""
    for location in locations_of(units):
        if location.resource.kind is ResourceKind.CELL:
            yield from _cell_edges(units, location)
            if all(touch.index is not None for touch in location.touches):
                continue
            yield from _state_edges(units, _beside_cells(location))
        else:
            yield from _state_edges(units, location)
            yield from _paired(location.pairing, location.resource.name)


def _state_edges(units: Units, location: Location) -> Iterator[Edge]:
    """Edges on a resource that is one thing for all steps."""
    walk = _Walk(units, location, persists=True)
    groups = _grouped(location.touches)
    for step in (0, 1):
        for group in groups:
            for round in (0, 1) if group[0].unit.loop else (0,):
                for touch in group:
                    yield from walk.visit(touch, step, round, emit=step == 1)


def _cell_edges(units: Units, location: Location) -> Iterator[Edge]:
    """Edges between accesses to one cell: the life of the cell, walked through once."""
    touches = [touch for touch in location.touches if touch.index is not None]
    if not touches:
        return
    walk = _Walk(units, replace(location, touches=tuple(touches)), persists=False)
    touches.sort(key=lambda touch: (-_step(touch), touch.unit.index))
    for step, same in groupby(touches, key=lambda touch: -_step(touch)):
        for group in _grouped(tuple(same)):
            for round in (0, 1) if group[0].unit.loop else (0,):
                for touch in group:
                    yield from walk.visit(touch, step, round, emit=True)
            yield from _micro_edges(units, location, group)


def _micro_edges(units: Units, location: Location, group: tuple[Touch, ...]) -> Iterator[Edge]:
    """Edges between accesses to one cell of a micro-batch, in one loop: the life of that cell."""
    touches = [touch for touch in group if touch.unit.loop and _micro(touch) is not None]
    touches.sort(key=lambda touch: (-(_micro(touch) or 0), touch.unit.index))
    walk = _Walk(units, replace(location, touches=tuple(touches)), persists=False, by_micro=True)
    for touch in touches:
        yield from walk.visit(touch, 0, -(_micro(touch) or 0), emit=True)


def _beside_cells(location: Location) -> Location:
    """The accesses as they relate to those that touch all cells."""
    modes = {Mode.READ: Mode.CELL_READ, Mode.WRITE: Mode.CELL_WRITE}
    return replace(
        location,
        touches=tuple(
            touch if touch.index is None else replace(touch, mode=modes[touch.mode]) for touch in location.touches
        ),
    )


def _paired(pairing: Pairing, name: str) -> Iterator[Edge]:
    """The i-th push of a step comes before its i-th pop."""
    if not pairing.counted:
        return
    for push, pop in zip(pairing.pushes, pairing.pops, strict=True):
        yield Edge(push.id, pop.id, 0, None, EdgeKind.FIFO, name, push.event, persists=True)


def _grouped(touches: tuple[Touch, ...]) -> list[tuple[Touch, ...]]:
    """Accesses in order, those inside one loop over micro-batches together."""
    return [tuple(group) for _, group in groupby(touches, key=lambda touch: touch.unit.loop or touch.unit.id)]


def _step(touch: Touch) -> int:
    assert touch.index is not None, "an access to one cell has an index"
    return touch.index.step


def _micro(touch: Touch) -> int | None:
    return touch.index.micro if touch.index is not None else None


def _undeclared(a: Touch, b: Touch) -> str:
    """The ids of those of two units that declare no effects."""
    return " ".join(touch.unit.id for touch in (a, b) if touch.any)


def _kind(location: Location, a: Touch, b: Touch) -> EdgeKind:
    if a.any or b.any:
        return EdgeKind.BARRIER
    if Mode.PUSH in (a.mode, b.mode) or Mode.POP in (a.mode, b.mode):
        return EdgeKind.FIFO
    if not a.writes:
        return EdgeKind.WAR
    if b.reads:
        return EdgeKind.RAW
    return EdgeKind.CHANNEL if location.resource.kind is ResourceKind.CHANNEL else EdgeKind.WAW


def _what(location: Location, a: Touch, b: Touch) -> str:
    """The resource: as the later one names it if it names an index, else the one both touch."""
    if location.resource.kind is ResourceKind.CELL and b.exact and b.index is not None:
        return b.target
    return location.resource.name
