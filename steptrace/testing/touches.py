"""Which cells an instance touches: the smallest things that one instance can write and another read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from steptrace.ir.builtin import RESOURCES, kinds_of
from steptrace.ir.effects import effects_of
from steptrace.ir.program import Op, Program
from steptrace.ir.resource import ANY, Access, Effect, Index, Resource, ResourceKind
from steptrace.testing.unrolled import Key

Cell: TypeAlias = tuple[str, int | None, int | None]
"""A resource by name, the step it belongs to, the micro-batch; None for a resource that is one thing."""


@dataclass(frozen=True, slots=True)
class Touch:
    """What an op does to one resource in use.

    Attributes:
      resource: the resource.
      index: which of its cells; None for all.
      reads: whether it reads, or waits for, what is there.
      writes: whether it writes it.
      awaits: whether it waits until all work that writes it is done.
      exact: whether the op names this resource, not one that it is a part of.
    """

    resource: Resource
    index: Index | None
    reads: bool
    writes: bool
    awaits: bool
    exact: bool


@dataclass(frozen=True)
class Touches:
    """The touches of every op of a program.

    Attributes:
      by_op: touches by op id.
      resources: the resources in use by name.
    """

    by_op: dict[str, tuple[Touch, ...]]
    resources: dict[str, Resource]

    def read(self, name: str) -> Iterator[Index | None]:
        """The indices under which a resource is read anywhere in the program."""
        for touches in self.by_op.values():
            for touch in touches:
                if touch.reads and touch.resource.name == name:
                    yield touch.index


def touches_of(program: Program) -> Touches:
    """The touches of a program's ops, those before and after its steps included."""
    kinds = kinds_of(program)
    effects = {op.id: effects_of(op, kinds[op.kind], program.contract) for op in program.ops()}
    declared = {**RESOURCES, **program.resource_table()}
    names = sorted({effect.resource for found in effects.values() for effect in found} | {ANY})
    resources = {name: declared.get(name, Resource(name, ResourceKind.STATE)) for name in names}
    ops = {op.id: op for op in program.ops()}
    return Touches({id: tuple(_touches(ops[id], found, resources)) for id, found in effects.items()}, resources)


def _touches(op: Op, effects: Iterable[Effect], resources: dict[str, Resource]) -> Iterator[Touch]:
    groups: dict[tuple[str, Index | None], set[Access]] = defaultdict(set)
    for effect in effects:
        groups[effect.resource, effect.index].add(effect.access)
    for (wanted, index), accesses in groups.items():
        reads = bool(accesses & {Access.READ, Access.AWAIT})
        for name, resource in resources.items():
            if name != wanted and wanted != ANY and not name.startswith(wanted + "."):
                continue
            own = index if resource.kind is ResourceKind.CELL else None
            yield Touch(resource, own, reads, Access.WRITE in accesses, Access.AWAIT in accesses, name == wanted)


def named_cell(touch: Touch, key: Key) -> Cell:
    """The cell that a touch names; a cell without step or micro-batch stands for all that have one too."""
    name = touch.resource.name
    if touch.index is None:
        return name, None, None
    _, step, path = key
    micro = None if touch.index.micro is None else (path[-1] if path else 0) + touch.index.micro
    return name, step + touch.index.step, micro


class Universe:
    """The cells that any instance of a run names, to expand touches of whole resources and whole steps."""

    def __init__(self, named: Iterable[Cell]) -> None:
        self._by_name: dict[str, set[Cell]] = defaultdict(set)
        for cell in named:
            self._by_name[cell[0]].add(cell)

    def cells(self, cell: Cell) -> Iterator[Cell]:
        """The cell itself and those inside it."""
        name, step, micro = cell
        yield cell
        if micro is not None:
            return
        for other in self._by_name[name]:
            if other != cell and (step is None or other[1] == step):
                yield other

    def __iter__(self) -> Iterator[Cell]:
        for cells in self._by_name.values():
            yield from cells
