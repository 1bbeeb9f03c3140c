"""Edges from the end of the data: no op of a step runs before it is known that the step exists."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from steptrace.check.edge import Edge, EdgeKind
from steptrace.check.units import ALWAYS_PRESENT, Unit, Units
from steptrace.check.values import makers_of, needed_flags, polled_values
from steptrace.ir.builtin import kinds_of
from steptrace.ir.program import Op
from steptrace.ir.resource import Access


def exists_edges(units: Units, edges: Iterable[Edge]) -> Iterator[Edge]:
    """Edges that keep every op of a step behind the op that finds out whether the step exists.

    Where other edges lead there already, none is added. What stands before that op in the reference runs, in step
    k + 1, only if step k existed; putting work on the queue is no part of this, since a queue that is fed no more
    is what ends the data.

    Args:
      units: the units of the reference.
      edges: its other edges.
    """
    ahead: dict[str, list[Edge]] = defaultdict(list)
    for edge in edges:
        ahead[edge.before].append(edge)
    guards = _guards(units)
    for source, flag in finders(units):
        queues = _touched(source, Access.WRITE)
        here = [unit for unit in units if unit.index > source.index]
        fed = [unit for unit in units if unit.index < source.index and not _pushes(unit) & queues]
        for distance, wanted in enumerate((here, fed)):
            reach = _Reach(units, ahead, guards, distance)
            reach.extend(source)
            for unit in wanted:
                if unit.id in reach.found or unit.polls:
                    continue
                micro = 0 if unit.loop is not None and unit.loop == source.loop and not distance else None
                edge = Edge(source.id, unit.id, distance, micro, EdgeKind.EXISTS, f"%{flag}", source.event)
                yield edge
                ahead[source.id].append(edge)
                reach.extend(source)


def finders(units: Units) -> Iterator[tuple[Unit, str]]:
    """Units that tell whether the step exists, each with its flag; of a loop and an op peeled from it the first."""
    kinds = kinds_of(units.program)
    origins = set()
    for unit in units:
        op = unit.node
        if not isinstance(op, Op) or kinds[op.kind].user:
            continue
        for result, given in zip(op.results, kinds[op.kind].results, strict=True):
            origin = op.origin.op if op.origin else op.id
            if given.name == "exists" and origin not in origins:
                origins.add(origin)
                yield unit, result.name


class _Reach:
    """What follows an instance within a number of steps by known edges, in every step that has both.

    An op that polls follows nothing by its operand, but the flag it gives does not become true before its operand
    is there: ops that run only when that flag is true follow what the operand follows.
    """

    def __init__(self, units: Units, ahead: dict[str, list[Edge]], guards: dict[str, list[str]], distance: int) -> None:
        self.units = units
        self.ahead = ahead
        self.guards = guards
        self.distance = distance
        self.seen: set[tuple[str, int]] = set()
        self.found: set[str] = set()
        self.used: dict[str, int] = defaultdict(int)

    def extend(self, source: Unit) -> None:
        """Follows the edges that are new since the last time."""
        pending = [(source.id, 0)]
        fresh = self.used[source.id]
        while pending:
            id, steps = pending.pop()
            edges = self.ahead.get(id, [])
            if id == source.id and steps == 0:
                edges = edges[fresh:]
                self.used[id] = fresh + len(edges)
            follow = [(edge.after, edge.distance) for edge in edges if not edge.micro]
            for after, distance in (*follow, *((guarded, 0) for guarded in self.guards.get(id, ()))):
                place = (after, steps + distance)
                if place[1] <= self.distance and place not in self.seen and self._passes(id, after, distance, source):
                    self.seen.add(place)
                    pending.append(place)
                    if place[1] == self.distance:
                        self.found.add(after)

    def _passes(self, id: str, after: str, distance: int, source: Unit) -> bool:
        """Whether the op in between is there whenever the later one is."""
        here = self.units[id].presence
        return id == source.id or here == ALWAYS_PRESENT or (not distance and self.units[after].presence.implies(here))


def _guards(units: Units) -> dict[str, list[str]]:
    """For each unit whose value a polling op looks for, the units that run only when it was there."""
    makers = makers_of(units)
    polled = polled_values(units)
    guards: dict[str, list[str]] = defaultdict(list)
    for unit in units:
        for flag in needed_flags(unit):
            for use in polled.get(flag, ()):
                for maker in makers.get(use.name, ()):
                    guards[maker.id].append(unit.id)
    return guards


def _touched(unit: Unit, access: Access) -> set[str]:
    return {effect.resource for effect in unit.effects if effect.access is access}


def _pushes(unit: Unit) -> set[str]:
    """The resources that a unit only writes."""
    return _touched(unit, Access.WRITE) - _touched(unit, Access.READ)
