"""Edges from values, by definition and use."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from steptrace.check.edge import Edge, EdgeKind
from steptrace.check.units import Unit, Units
from steptrace.ir.predicate import And, Flag, Predicate
from steptrace.ir.program import Op, Use


def value_edges(units: Units) -> Iterator[Edge]:
    """An edge from what makes a value to each unit that uses it.

    None leads to a unit that runs only when a polling op has seen the value: its flag tells that the value is there,
    and a lane that waited for it instead would be held up.
    """
    makers = makers_of(units)
    seen = polled_values(units)
    for unit in units:
        known = {value for flag in needed_flags(unit) for value in seen.get(flag, ())}
        for use in dict.fromkeys(unit.uses()):
            if use in known:
                continue
            for maker in makers.get(use.name, ()):
                if maker.id not in units.arms.get(unit.id, ()) or use.step:
                    yield from _edges_of_use(units, maker, unit, use)


def polled_values(units: Units) -> dict[str, tuple[Use, ...]]:
    """For each flag of a polling op, the values that it looks for."""
    return {result.name: unit.ops[0].args for unit in units if unit.polls for result in unit.ops[0].results}


def needed_flags(unit: Unit) -> tuple[str, ...]:
    """Flags that are true whenever the unit runs."""
    return tuple(_needed(unit.node.when)) if isinstance(unit.node, Op) else ()


def _needed(predicate: Predicate) -> Iterator[str]:
    if isinstance(predicate, Flag):
        yield predicate.name
    elif isinstance(predicate, And):
        for term in predicate.terms:
            yield from _needed(term)


def poll_edges(units: Units) -> Iterator[Edge]:
    """An edge from what makes a value to each op that looks for it without waiting.

    These are no waits, so they are not among the edges of a reference; but on one lane, an op that looks before the
    value can be there never sees it.
    """
    makers = makers_of(units)
    for unit in units:
        for use in unit.ops[0].args if unit.polls else ():
            for maker in makers.get(use.name, ()):
                yield from _edges_of_use(units, maker, unit, use)


def makers_of(units: Units) -> dict[str, list[Unit]]:
    """For each value the units that make it: one, or the arms of a choice."""
    makers: dict[str, list[Unit]] = defaultdict(list)
    for unit in units:
        for op in unit.ops:
            for result in op.results:
                makers[result.name].append(unit)
    return makers


def _edges_of_use(units: Units, maker: Unit, user: Unit, use: Use) -> Iterator[Edge]:
    what = str(use)
    if maker.loop is None or maker.loop != user.loop or use.step:
        yield Edge(maker.id, user.id, -use.step, None, EdgeKind.VALUE, what, maker.event)
        return
    yield Edge(maker.id, user.id, 0, -use.micro, EdgeKind.VALUE, what, maker.event)
    if use.micro:
        yield from _from_peeled(units, maker, user, what)


def _from_peeled(units: Units, maker: Unit, user: Unit, what: str) -> Iterator[Edge]:
    """The first rounds of the loop use what peeled ops made: those of the same origin."""
    origin = maker.ops[0].origin
    for unit in units:
        op = unit.node
        if isinstance(op, Op) and op.micro is not None and op.results and op.origin == origin:
            yield Edge(unit.id, user.id, 0, None, EdgeKind.VALUE, what, unit.event)
