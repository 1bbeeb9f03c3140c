"""Edges from capacities: a place must be free before it is used again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from steptrace.check.access import Location, Mode, Touch, locations_of
from steptrace.check.edge import Edge, EdgeKind
from steptrace.check.units import ALWAYS_PRESENT, Units
from steptrace.ir.predicate import ALWAYS
from steptrace.ir.program import Loop, ops_of
from steptrace.ir.resource import Resource, ResourceKind, parts_of_pool


def capacity_edges(units: Units) -> Iterator[Edge]:
    """The last use of an entry comes before the next producer that needs its place, ``capacity`` entries later.

    A cell with a capacity holds that many steps' cells at a time; a fifo that many entries. A slot needs no edge of
    its own: its accesses are ordered as those of one thing, so it never holds more than one entry. A slot whose parts
    are cells is a pool, see ``pool_edges``.
    """
    locations = tuple(locations_of(units))
    yield from pool_edges(units, locations)
    for location in locations:
        if location.resource.capacity < 1:
            continue
        if location.resource.kind is ResourceKind.CELL:
            yield from _cells(location)
        elif location.resource.kind is ResourceKind.FIFO:
            yield from _queue(units, location)


def _cells(location: Location) -> Iterator[Edge]:
    capacity = location.resource.capacity
    life = _life(location)
    for last in _last_uses(life):
        for first in _first_writers(life):
            distance = capacity + _step(last) - _step(first)
            yield _edge(last, first, distance, location.resource)


def _life(location: Location) -> list[Touch]:
    """The accesses to one cell, in their order."""
    life = [touch for touch in location.touches if touch.index is not None]
    return sorted(life, key=lambda touch: (-_step(touch), touch.unit.index))


def pool_edges(units: Units, locations: Iterable[Location]) -> Iterator[Edge]:
    """Edges from pools: slots whose parts are cells, of which ``capacity`` are in use at a time, all parts together.

    The cells of all parts stand on one counter, step after step and in a step in the order in which they are first
    written; cell i is given up before cell ``i + capacity`` is taken. So of the cells whose numbers leave one rest,
    divided by the capacity, one is in use at a time, whatever the order of the others.
    """
    cells = {location.resource.name: location for location in locations if location.resource.kind is ResourceKind.CELL}
    for pool in units.program.resources:
        parts = [part for part in map(_Part.of, map(cells.__getitem__, parts_of_pool(pool, cells))) if part.writers]
        parts.sort(key=lambda part: part.place)
        for at, part in enumerate(parts):
            steps, next_ = divmod(at + pool.capacity, len(parts))
            for last in part.users:
                for first in parts[next_].writers:
                    lag = max(_step(writer) for writer in part.writers) - _step(last)
                    if lag <= steps:
                        yield _edge(last, first, steps - lag, pool)
                    else:  # a cell lives on into a step before which its place is needed again: there is no such order
                        yield _edge(first, first, 0, pool)


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a pool: the units that may write its cell first, and those that may use it last."""

    writers: tuple[Touch, ...]
    users: tuple[Touch, ...]

    @classmethod
    def of(cls, location: Location) -> _Part:
        life = _life(location)
        return cls(tuple(_first_writers(life)), tuple(_last_uses(life)))

    @property
    def place(self) -> tuple[int, int]:
        """Where its cell is first written, in the order of a step."""
        return min((-_step(touch), touch.unit.index) for touch in self.writers)


def _last_uses(life: list[Touch]) -> list[Touch]:
    """The last writer that every step has, and all that stands after it."""
    for at in range(len(life) - 1, -1, -1):
        if life[at].writes and life[at].unit.presence == ALWAYS_PRESENT:
            return life[at:]
    return life


def _first_writers(life: list[Touch]) -> list[Touch]:
    """The first writer that every step has, and those before it."""
    writers = []
    for touch in life:
        if touch.writes:
            writers.append(touch)
            if touch.unit.presence == ALWAYS_PRESENT:
                break
    return writers


def _queue(units: Units, location: Location) -> Iterator[Edge]:
    capacity, pairing = location.resource.capacity, location.pairing
    pushes = [touch for touch in location.touches if touch.mode is Mode.PUSH]
    pops = [touch for touch in location.touches if touch.mode is Mode.POP]
    if pairing.counted:
        for at, pop in enumerate(pops):
            steps, place = divmod(at + capacity, len(pushes))
            yield _edge(pop, pushes[place], steps, location.resource)
        return
    homes = _homes(units, location)
    if len(set(homes.values())) > 1:
        yield from _in_turns(location, pushes, pops, homes)
        return
    streamed = _streamed(pushes, pops)
    distance = 1 if streamed else max(1, capacity // max(1, len(pushes)))
    for pop in pops:
        for push in pushes:
            yield _edge(pop, push, distance, location.resource)
    if streamed:
        yield from _in_stream(*streamed, pops, location)


def _homes(units: Units, location: Location) -> dict[str, str]:
    """For each unit that puts in or takes out its loop: the one that it is, stands in, or was peeled from."""
    loops = [node for node in units.program.body if isinstance(node, Loop)]
    known = {op.origin: loop.id for loop in loops for op in ops_of((loop,))}
    homes: dict[str, str] = {}
    for touch in location.touches:
        if touch.mode in (Mode.PUSH, Mode.POP):
            home = known.get(touch.unit.ops[0].origin)
            if home is None:
                return {}
            homes[touch.unit.id] = home
    return homes


def _in_turns(location: Location, pushes: list[Touch], pops: list[Touch], homes: Mapping[str, str]) -> Iterator[Edge]:
    """Of several loops one uses the places at a time: what one left is taken out before the next puts anything in."""
    for pop in pops:
        for push in pushes:
            same = homes[pop.unit.id] == homes[push.unit.id]
            earlier = not same and pop.unit.index < push.unit.index
            yield _edge(pop, push, 0 if earlier else 1, location.resource)
    for home in dict.fromkeys(homes.values()):
        own = [[touch for touch in some if homes[touch.unit.id] == home] for some in (pushes, pops)]
        streamed = _streamed(*own)
        if streamed:
            yield from _in_stream(*streamed, own[1], location)


def _streamed(pushes: list[Touch], pops: list[Touch]) -> tuple[Touch, Touch] | None:
    """The push and the pop of a loop over micro-batches in which each round has one of both; None if that is not so.

    Besides, only peeled rounds of that loop push and pop.
    """
    inside = [[touch for touch in touches if touch.unit.loop] for touches in (pushes, pops)]
    if [len(touches) for touches in inside] != [1, 1] or inside[0][0].unit.loop != inside[1][0].unit.loop:
        return None
    push, pop = inside[0][0], inside[1][0]
    group, start = push.unit.presence.group, push.unit.presence.above
    for touch in (*pushes, *pops):
        here = touch.unit.presence
        if here.group != group or (not touch.unit.loop and here.above >= start):
            return None
    if any(op.when != ALWAYS for touch in (push, pop) for op in touch.unit.ops):
        return None
    return push, pop


def _in_stream(push: Touch, pop: Touch, pops: list[Touch], location: Location) -> Iterator[Edge]:
    """Micro-batch m takes its entry out before micro-batch m + capacity puts one in, on one counter over the rounds.

    An edge from a peeled op speaks of all rounds, so the first of them waits for it whatever the capacity. What is left
    at the end of a step is taken out before the next one puts anything in.
    """
    yield replace(_edge(pop, push, 0, location.resource), micro=location.resource.capacity)
    for first in pops:
        if not first.unit.loop:
            yield _edge(first, push, 0, location.resource)


def _edge(last: Touch, first: Touch, distance: int, resource: Resource) -> Edge:
    note = str(resource.capacity)
    return Edge(
        last.unit.id, first.unit.id, distance, None, EdgeKind.CAPACITY, resource.name, last.unit.event, note=note
    )


def _step(touch: Touch) -> int:
    assert touch.index is not None, "an access to one cell has an index"
    return touch.index.step
