"""Edges from lifetimes: what gives memory back comes after all that reads it, once that is done.

A micro-batch that was handed out lies in a buffer. Ops that take it, or a value that was made from it by adding to it
or by shipping it, may read that buffer until their work is finished: on a CPU a device array can alias host memory. So
an op that frees its operand (``OpKind.frees``) follows each of them, from its ``done``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from steptrace.check.edge import Edge, EdgeKind
from steptrace.check.units import Units
from steptrace.ir.builtin import kinds_of
from steptrace.ir.program import Op

ALIASES = frozenset({"micro_batch", "token"})
"""Base types of values that may lie where what they were made from lies."""


def aliases_of(ops: Iterable[Op], name: str) -> frozenset[str]:
    """The values that may lie in the memory of a value, itself among them.

    Args:
      ops: the ops that may use it, in any order.
      name: the value.
    """
    users = tuple(ops)
    found, before = {name}, 0
    while len(found) > before:
        before = len(found)
        for op in users:
            if any(use.name in found for use in op.args):
                found |= {result.name for result in op.results if result.type.base in ALIASES}
    return frozenset(found)


def lifetime_edges(units: Units) -> Iterator[Edge]:
    """An edge from each unit that reads what a unit frees: from when its work is finished."""
    kinds = kinds_of(units.program)
    ops = [op for unit in units for op in unit.ops]
    for last in units:
        freed = last.node
        if not isinstance(freed, Op) or not kinds[freed.kind].frees:
            continue
        names = aliases_of(ops, freed.args[0].name)
        for unit in units:
            if unit is not last and any(use.name in names for op in unit.ops for use in op.args):
                micro = 0 if unit.loop is not None and unit.loop == last.loop else None
                yield Edge(unit.id, last.id, 0, micro, EdgeKind.LIFETIME, f"%{freed.args[0].name}", "done")
