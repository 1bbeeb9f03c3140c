"""Accesses: which unit touches which resource how, collected for each resource."""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from steptrace.check.units import ALWAYS_PRESENT, Presence, Unit, Units
from steptrace.ir.builtin import RESOURCES
from steptrace.ir.predicate import ALWAYS
from steptrace.ir.resource import ANY, Access, Effect, Index, Resource, ResourceKind


class Mode(enum.Enum):
    """How an access relates to others of the same resource."""

    READ = "read"
    WRITE = "write"
    CELL_READ = "cell read"
    """A read of one cell, seen beside accesses to all cells."""
    CELL_WRITE = "cell write"
    PUSH = "push"
    POP = "pop"


EARLIER_THAN: Mapping[Mode, frozenset[Mode]] = {
    Mode.READ: frozenset({Mode.WRITE, Mode.CELL_WRITE, Mode.PUSH, Mode.POP}),
    Mode.WRITE: frozenset(Mode),
    Mode.CELL_READ: frozenset({Mode.WRITE}),
    Mode.CELL_WRITE: frozenset({Mode.READ, Mode.WRITE}),
    Mode.PUSH: frozenset({Mode.READ, Mode.WRITE, Mode.PUSH}),
    Mode.POP: frozenset({Mode.READ, Mode.WRITE, Mode.POP}),
}
"""For each way of access, those that come after it when they stand after it in the reference."""

UNCOUNTED: Mapping[Mode, frozenset[Mode]] = {**EARLIER_THAN, Mode.PUSH: EARLIER_THAN[Mode.PUSH] | {Mode.POP}}
"""The same on a queue where it is not known which push a pop takes."""


@dataclass(frozen=True, slots=True)
class Touch:
    """One unit's access to one resource.

    Attributes:
      unit: who.
      mode: how.
      index: which cell, None for the whole resource.
      reads: whether it sees the state it finds.
      writes: whether it changes it.
      awaits: whether it waits until the last writer is done.
      target: the resource as the unit names it, with its index.
      exact: whether the unit names exactly this resource, not one that it is a part of.
    """

    unit: Unit
    mode: Mode
    index: Index | None
    reads: bool
    writes: bool
    awaits: bool
    target: str
    exact: bool

    @property
    def any(self) -> bool:
        """Whether the unit touches everything."""
        return self.target == ANY


@dataclass(frozen=True, slots=True)
class Pairing:
    """How pushes and pops of one fifo belong together.

    Attributes:
      pushes: the units that only write, in order.
      pops: the units that read and write, in order.
    """

    pushes: tuple[Unit, ...]
    pops: tuple[Unit, ...]

    @property
    def counted(self) -> bool:
        """Whether the i-th push of a step is what its i-th pop takes.

        That is known where as many push as pop, each once a step and under no condition, and each pop stands
        after its push.
        """
        ends = (*self.pushes, *self.pops)
        once = all(not unit.loop and unit.presence == ALWAYS_PRESENT and len(unit.ops) == 1 for unit in ends)
        return (
            len(self.pushes) == len(self.pops)
            and once
            and all(unit.ops[0].when == ALWAYS for unit in ends)
            and all(push.index < pop.index for push, pop in zip(self.pushes, self.pops, strict=True))
        )


@dataclass(frozen=True, slots=True)
class Location:
    """A resource with its accesses in program order.

    Attributes:
      resource: the resource.
      touches: the accesses, in program order; those of units that touch everything are among them as far as
        they are nearest to another access.
    """

    resource: Resource
    touches: tuple[Touch, ...]

    @property
    def pairing(self) -> Pairing:
        """Its pushes and pops."""
        by_mode = {
            mode: tuple(touch.unit for touch in self.touches if touch.mode is mode) for mode in (Mode.PUSH, Mode.POP)
        }
        return Pairing(by_mode[Mode.PUSH], by_mode[Mode.POP])

    def later_than(self) -> Mapping[Mode, frozenset[Mode]]:
        """For each way of access, those that must follow it where they follow it in the reference."""
        if self.resource.kind is not ResourceKind.FIFO or self.pairing.counted:
            return EARLIER_THAN
        return UNCOUNTED


def locations_of(units: Units) -> Iterator[Location]:
    """Every resource that two instances might conflict on, with its accesses."""
    table = {**RESOURCES, **units.program.resource_table()}
    found: dict[str, list[Touch]] = defaultdict(list)
    barriers: list[Touch] = []
    names = sorted({effect.resource for unit in units for effect in unit.effects} - {ANY})
    for unit in units:
        for group in _by_cell(unit.effects).values():
            if group[0].resource == ANY:
                barriers.append(_touch(unit, group, Resource(ANY, ResourceKind.STATE)))
                continue
            for name in _parts(group[0].resource, names):
                found[name].append(_touch(unit, group, table.get(name, Resource(name, ResourceKind.STATE))))
    if barriers:
        yield Location(Resource(ANY, ResourceKind.STATE), tuple(barriers))
    for name, touches in found.items():
        resource = table.get(name, Resource(name, ResourceKind.STATE))
        yield Location(resource, tuple(_with_nearest(touches, barriers)))


def _by_cell(effects: tuple[Effect, ...]) -> dict[tuple[str, Index | None], list[Effect]]:
    """Effects grouped by what they touch."""
    groups: dict[tuple[str, Index | None], list[Effect]] = defaultdict(list)
    for effect in effects:
        groups[effect.resource, effect.index].append(effect)
    return groups


def _parts(name: str, names: list[str]) -> list[str]:
    """The resource itself and those that are part of it, of a sorted list."""
    inside = name + "."
    parts = [name]
    for at in range(bisect_left(names, inside), len(names)):
        if not names[at].startswith(inside):
            break
        parts.append(names[at])
    return parts


def _touch(unit: Unit, group: list[Effect], resource: Resource) -> Touch:
    accesses = {effect.access for effect in group}
    exact = group[0].resource == resource.name
    index = group[0].index if resource.kind is ResourceKind.CELL else None
    reads, writes = Access.WRITE not in accesses or Access.READ in accesses, Access.WRITE in accesses
    mode = Mode.WRITE if writes else Mode.READ
    if resource.kind is ResourceKind.FIFO and exact and writes:
        mode = Mode.POP if Access.READ in accesses else Mode.PUSH
    return Touch(unit, mode, index, reads, writes, Access.AWAIT in accesses, group[0].target, exact)


def _with_nearest(touches: list[Touch], barriers: list[Touch]) -> list[Touch]:
    """Accesses together with the nearest units before and after each that touch everything.

    The rest of those are ordered among themselves, so they order nothing new here. Nearest is meant in the circle of
    steps, and for each group of units that are present together.
    """
    if not barriers:
        return touches
    groups: dict[Presence, list[Touch]] = defaultdict(list)
    for barrier in barriers:
        groups[barrier.unit.presence].append(barrier)
    near: dict[int, Touch] = {}
    for group in groups.values():
        places = [barrier.unit.index for barrier in group]
        for touch in touches:
            at = bisect_left(places, touch.unit.index)
            for barrier in (group[at - 1], group[at % len(group)], group[(at + 1) % len(group)]):
                near[barrier.unit.index] = barrier
    own = {touch.unit.index for touch in touches if touch.any}
    return sorted([*touches, *(near[at] for at in near if at not in own)], key=lambda touch: touch.unit.index)
