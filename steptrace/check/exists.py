"""Edges from the end of the data: no op of a step runs before it is known that the step exists."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from steptrace.check.edge import Edge, EdgeKind
from steptrace.check.hazards import NO_LANES
from steptrace.check.units import ALWAYS_PRESENT, Unit, Units
from steptrace.check.values import makers_of, needed_flags, polled_values
from steptrace.ir.builtin import kinds_of
from steptrace.ir.program import Op
from steptrace.ir.resource import Access


def exists_edges(units: Units, edges: Iterable[Edge], lanes: Mapping[str, str] = NO_LANES) -> Iterator[Edge]:
    """Edges that keep every op of a step behind the op that finds out whether the step exists.

    Where other edges lead there already, none is added. What stands before that op in the reference runs, in step
    k + 1, only if step k existed; putting work on the queue is no part of this, since a queue that is fed no more
    is what ends the data.

    Args:
      units: the units of the reference.
      edges: its other edges.
      lanes: the lanes of ops in loops, where a lane's order stands for edges between several loops on it.
    """
    found = list(finders(units))
    if not found:
        return
    reach = _Reach(units, edges, lanes, {source.id: 1 << at for at, (source, _) in enumerate(found)})
    passed = 0
    for unit in units:
        for source, flag in reach.missing(unit, found, 0 if unit.polls else passed, 0):
            micro = 0 if unit.loop is not None and unit.loop == source.loop else None
            yield Edge(source.id, unit.id, 0, micro, EdgeKind.EXISTS, f"%{flag}", source.event)
        passed |= reach.bits.get(unit.id, 0)
    feeding = _by_queue(found)
    for unit in units:
        passed &= ~reach.bits.get(unit.id, 0)
        for source, flag in reach.missing(unit, found, 0 if unit.polls else passed & ~_fed(feeding, unit), 1):
            yield Edge(source.id, unit.id, 1, None, EdgeKind.EXISTS, f"%{flag}", source.event)


def _by_queue(found: list[tuple[Unit, str]]) -> dict[str, int]:
    """For each resource the bits of the finders that write it."""
    feeding: dict[str, int] = defaultdict(int)
    for at, (source, _) in enumerate(found):
        for resource in _touched(source, Access.WRITE):
            feeding[resource] |= 1 << at
    return feeding


def _fed(feeding: Mapping[str, int], unit: Unit) -> int:
    """The finders of whose queues a unit is a pusher."""
    mask = 0
    for resource in _pushes(unit):
        mask |= feeding.get(resource, 0)
    return mask


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
    """Which ops that tell whether the step exists lead to each unit, as bits, in every step that has both.

    Followed are known edges and the new ones. An op that polls follows nothing by its operand, but the flag it gives
    does not become true before its operand is there: ops that run only when that flag is true follow what the operand
    follows.
    """

    def __init__(self, units: Units, edges: Iterable[Edge], lanes: Mapping[str, str], bits: Mapping[str, int]) -> None:
        self.units = units
        self.lanes = lanes
        self.bits = bits
        self.on_lane: dict[str, int] = defaultdict(int)
        for id, bit in bits.items():
            self.on_lane[lanes.get(id, "")] |= bit
        self.into: dict[str, list[tuple[str, int]]] = defaultdict(list)
        for edge in edges:
            if not edge.micro and edge.distance in (0, 1):
                self.into[edge.after].append((edge.before, edge.distance))
        for maker, guarded in _guards(units).items():
            for id in guarded:
                self.into[id].append((maker, 0))
        self.here: dict[str, int] = {}
        self.next: dict[str, int] = {}

    def missing(
        self, unit: Unit, found: list[tuple[Unit, str]], wanted: int, distance: int
    ) -> Iterator[tuple[Unit, str]]:
        """Those of some finders that do not lead to a unit so many steps later; they do from now on.

        All units before it in the step, and all of the step before, were asked for. The nearest one comes first: what
        leads to it may lead on.
        """
        layer = self.next if distance else self.here
        mask = self._next(unit) if distance else self._here(unit)
        while wanted & ~mask:
            source, flag = found[(wanted & ~mask).bit_length() - 1]
            mask |= self.bits[source.id] | self._passed(source.id, unit, self.here[source.id], distance)
            self.into[unit.id].append((source.id, distance))
            yield source, flag
        layer[unit.id] = mask

    def _here(self, unit: Unit) -> int:
        mask = 0
        for before, distance in self.into[unit.id]:
            if not distance:
                mask |= self.bits.get(before, 0) | self._passed(before, unit, self.here.get(before, 0), 0)
        return mask

    def _next(self, unit: Unit) -> int:
        mask = 0
        for before, distance in self.into[unit.id]:
            if distance:
                mask |= self.bits.get(before, 0) | self._passed(before, unit, self.here.get(before, 0), 1)
            else:
                mask |= self._passed(before, unit, self.next.get(before, 0), 0)
        return mask

    def _passed(self, id: str, after: Unit, mask: int, distance: int) -> int:
        """What an op in between hands on: all if it is there whenever the later one is, else what its lane orders."""
        if not mask:
            return 0
        here = self.units[id].presence
        if here == ALWAYS_PRESENT or (not distance and after.presence.implies(here)):
            return mask
        lane = self.lanes.get(id, "")
        return mask & self.on_lane[lane] if lane and lane == self.lanes.get(after.id) else 0


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
