"""Which work must be finished before what touches the same resources."""

from __future__ import annotations

from collections import defaultdict

from steptrace.cost.moments import Moment
from steptrace.ir import Access, Effect, Op, Program, ResourceKind, effects_of, kinds_of, overlaps
from steptrace.ir.resource import ANY

_UNORDERED = (ResourceKind.FIFO, ResourceKind.CHANNEL)
_ALL = (Access.READ, Access.WRITE, Access.AWAIT)


class Touched:
    """When those that touched each resource last were done: for each op its latest instance, whose work is done last.

    Args:
      program: the program whose ops run.
    """

    def __init__(self, program: Program) -> None:
        names = [resource.name for resource in program.resources]
        ordered = [resource.name for resource in program.resources if resource.kind not in _UNORDERED]
        self._near = {name: [other for other in ordered if overlaps(name, other)] for name in (*names, ANY)}
        rows = kinds_of(program)
        self._effects = {op.id: effects_of(op, rows[op.kind], program.contract) for op in program.ops()}
        self._cells: dict[tuple[str, int | None, bool], dict[str, Moment]] = defaultdict(dict)
        self._latest: dict[tuple[str, bool], dict[str, Moment]] = defaultdict(dict)

    def awaited(self, op: Op, step: int) -> set[Moment]:
        """The work that the op must find done."""
        return self._found(op, step, (Access.AWAIT,), wrote=True)

    def ready(self, op: Op, step: int) -> set[Moment]:
        """What must be done before work of the op on a device starts."""
        return self._found(op, step, _ALL, wrote=True) | self._found(op, step, (Access.WRITE,), wrote=False)

    def note(self, op: Op, step: int, done: Moment) -> None:
        """Note when an instance is done with what it touches."""
        for effect in self._effects[op.id]:
            wrote = effect.access is Access.WRITE
            for name in self._near[ANY] if effect.resource == ANY else (effect.resource,):
                self._cells[name, _cell(effect, step), wrote][op.id] = done
                self._latest[name, wrote][op.id] = done

    def _found(self, op: Op, step: int, accesses: tuple[Access, ...], *, wrote: bool) -> set[Moment]:
        found: set[Moment] = set()
        for effect in self._effects[op.id]:
            if effect.access not in accesses:
                continue
            cell = _cell(effect, step)
            for name in self._near[effect.resource]:
                if cell is None:
                    found.update(self._latest.get((name, wrote), {}).values())
                else:
                    for known in (cell, None):
                        found.update(self._cells.get((name, known, wrote), {}).values())
        return found


def _cell(effect: Effect, step: int) -> int | None:
    return None if effect.index is None else step + effect.index.step
