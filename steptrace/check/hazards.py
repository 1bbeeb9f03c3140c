"""Edges from conflicting accesses: from the last writer and the readers since, not from all pairs.

A step is walked through twice, so that the second walk sees what the step before leaves behind; the body of a loop
over micro-batches is walked through twice for the same reason. In the second walk every access gets an edge from each
earlier access that it conflicts with, unless one in between is ordered after the one and before the other. One
in between only counts if it is there whenever one of the two is: a loop may run zero times, and a peeled op is missing
in a step without micro-batches. Several loops on one lane are the exception: their places on it do not depend on how
often they run, so between them the nearest one is enough. An op whose condition is false is there all the same: it
keeps its place and passes the order on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, groupby
from operator import attrgetter
from types import MappingProxyType
from typing import TypeAlias

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


NO_LANES: Mapping[str, str] = MappingProxyType({})
"""Where no order of a lane stands for edges."""

_Kept: TypeAlias = dict[Hashable, _Visit]
"""Accesses that later ones need an edge from, by unit."""


class _Walk:
    """The accesses so far that later ones still need an edge from.

    They are kept apart by the lane that the later one is on (``""`` outside several loops), by their own lane, mode,
    and by whose micro-batches they count: what comes later only looks at those that it can have to do with.
    """

    def __init__(
        self, units: Units, location: Location, lanes: Mapping[str, str], *, persists: bool, by_micro: bool = False
    ) -> None:
        self.units = units
        self.location = location
        self.later = location.later_than()
        self.dominated = _DOMINATED if self.later is EARLIER_THAN else _dominated(self.later)
        self.persists = persists
        self.by_micro = by_micro
        self.lanes = lanes
        self.awaited = any(touch.awaits for touch in location.touches)
        targets = dict.fromkeys(self._lane(touch) for touch in location.touches)
        self.live: dict[str, dict[tuple[str, Mode], dict[str, _Kept]]] = {target: {} for target in targets}
        self.running: dict[str, dict[str, _Kept]] = {}
        self.order = 0

    def visit(self, touch: Touch, step: int, round: int, emit: bool) -> Iterator[Edge]:
        """Goes past one access; yields the edges that end there."""
        self.order += 1
        now = _Visit(touch, step, round, self.order)
        if emit:
            sources = [source for source in self._earlier(touch) if self._conflict(source, now)]
            near = _Nearby(sources) if len(sources) > 1 else None
            for source in sources:
                if near is None or not any(self._passes(source, between, now) for between in near.to(source, now)):
                    yield self._edge(source, now)
            if touch.awaits:
                yield from self._awaited(now)
        self._forget(now)
        place = (self._lane(touch), touch.mode)
        for live in self.live.values():
            group = live.setdefault(place, {}).setdefault(touch.unit.presence.group, {})
            group[self._key(now), touch.target] = now
        if self.awaited and touch.writes and touch.unit.device:
            self._start(now)

    def _earlier(self, touch: Touch) -> list[_Visit]:
        """What an access may need edges from, by mode and in order."""
        modes: dict[Mode, list[_Visit]] = {}
        for (_, mode), groups in self.live[self._lane(touch)].items():
            if touch.mode in self.later[mode]:
                modes.setdefault(mode, []).extend(kept for group in groups.values() for kept in group.values())
        for kept in modes.values():
            kept.sort(key=attrgetter("order"))
        return [one for mode in Mode for one in modes.get(mode, ())]

    def _lane(self, touch: Touch) -> str:
        return self.lanes.get(touch.unit.id, "")

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
        """Whether an access in between orders the two ends, in every step that has both.

        Where all three are on one lane, in loops, the places of the loops do: they do not depend on how often one runs.
        """
        if source.order >= between.order or not self._ordered(source, between):
            return False
        wanted, lane = between.touch.unit.presence, self._lane(now.touch)
        if wanted == ALWAYS_PRESENT or (lane and lane == self._lane(source.touch) == self._lane(between.touch)):
            return True
        with_source = between.step == source.step and source.touch.unit.presence.implies(wanted)
        return with_source or (between.step == now.step and now.touch.unit.presence.implies(wanted))

    def _forget(self, now: _Visit) -> None:
        """Drops what every later access is ordered after by way of this one."""
        if _micro(now.touch) is not None and not self.by_micro:
            return
        lane, presence = self._lane(now.touch), now.touch.unit.presence
        for target, live in self.live.items():
            for (own, mode), groups in live.items():
                if mode not in self.dominated[now.touch.mode]:
                    continue
                placed = bool(lane) and lane == own == target
                whole = placed or presence == ALWAYS_PRESENT
                for group in list(groups) if whole else (presence.group,) if presence.group in groups else ():
                    self._drop(groups, group, now, placed)

    def _drop(self, groups: dict[str, _Kept], group: str, now: _Visit, placed: bool) -> None:
        """Drops those of a group that the access orders, by its place or by being there whenever they are."""
        kept = groups[group]
        placed = placed and group != now.touch.unit.presence.group
        gone = [key for key, old in kept.items() if self._conflict(old, now) and (placed or self._there_with(now, old))]
        for key in gone:
            del kept[key]
        if not kept:
            del groups[group]

    def _there_with(self, now: _Visit, source: _Visit) -> bool:
        wanted = now.touch.unit.presence
        return wanted == ALWAYS_PRESENT or (now.step == source.step and source.touch.unit.presence.implies(wanted))

    def _start(self, now: _Visit) -> None:
        """Notes work that is running on a device; a device finishes in the order of issue."""
        presence = now.touch.unit.presence
        running = self.running.setdefault(now.touch.unit.device, {})
        for group in list(running) if presence == ALWAYS_PRESENT else (presence.group,):
            kept = running.get(group, {})
            for id, source in list(kept.items()):
                if self._ordered(source, now) and self._there_with(now, source):
                    del kept[id]
        running.setdefault(presence.group, {})[self._key(now)] = now

    def _awaited(self, now: _Visit) -> Iterator[Edge]:
        for running in self.running.values():
            for kept in running.values():
                for source in kept.values():
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


class _Nearby:
    """Accesses before another one, by what they have to do with: between two of them, few can stand for the order."""

    def __init__(self, sources: list[_Visit]) -> None:
        self.always = [source for source in sources if source.touch.unit.presence == ALWAYS_PRESENT]
        self.groups: dict[str, list[_Visit]] = defaultdict(list)
        self.few = sources if len(sources) <= _FEW else None
        for source in sources:
            if source.touch.unit.presence != ALWAYS_PRESENT:
                self.groups[source.touch.unit.presence.group].append(source)

    def to(self, source: _Visit, now: _Visit) -> Iterable[_Visit]:
        """Those that may order a source before the access."""
        if self.few is not None:
            return self.few
        groups = dict.fromkeys((source.touch.unit.presence.group, now.touch.unit.presence.group))
        return chain(self.always, *(self.groups.get(group, ()) for group in groups))


_FEW = 8
"""So many accesses are all looked at."""


def _dominated(later: Mapping[Mode, frozenset[Mode]]) -> dict[Mode, list[Mode]]:
    """For each way of access, those that need no edges of their own once it follows them."""
    return {mode: [other for other in Mode if mode in later[other] and later[other] <= later[mode]] for mode in Mode}


_DOMINATED = _dominated(EARLIER_THAN)


def hazard_edges(units: Units, lanes: Mapping[str, str] = NO_LANES) -> Iterator[Edge]:
    """The edges from conflicting accesses, capacities aside.

    Args:
      units: the units of the reference.
      lanes: the lanes of ops in loops, where a lane's order stands for edges between several loops on it.
    """
    for location in locations_of(units):
        if location.resource.kind is ResourceKind.CELL:
            yield from _cell_edges(units, location, lanes)
            if all(touch.index is not None for touch in location.touches):
                continue
            yield from _state_edges(units, _beside_cells(location), lanes)
        else:
            yield from _state_edges(units, location, lanes)
            yield from _paired(location.pairing, location.resource.name)


def _state_edges(units: Units, location: Location, lanes: Mapping[str, str]) -> Iterator[Edge]:
    """Edges on a resource that is one thing for all steps."""
    walk = _Walk(units, location, lanes, persists=True)
    groups = _grouped(location.touches)
    for step in (0, 1):
        for group in groups:
            for round in (0, 1) if group[0].unit.loop else (0,):
                for touch in group:
                    yield from walk.visit(touch, step, round, emit=step == 1)


def _cell_edges(units: Units, location: Location, lanes: Mapping[str, str]) -> Iterator[Edge]:
    """Edges between accesses to one cell: the life of the cell, walked through once."""
    touches = [touch for touch in location.touches if touch.index is not None]
    if not touches:
        return
    walk = _Walk(units, replace(location, touches=tuple(touches)), lanes, persists=False)
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
    walk = _Walk(units, replace(location, touches=tuple(touches)), NO_LANES, persists=False, by_micro=True)
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
