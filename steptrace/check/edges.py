"""All edges of a reference: one list, from which every order is judged."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from itertools import chain

from steptrace.check.capacity import capacity_edges
from steptrace.check.edge import Edge, EdgeKind
from steptrace.check.exists import exists_edges
from steptrace.check.hazards import hazard_edges
from steptrace.check.lifetime import lifetime_edges
from steptrace.check.units import is_stream, units_of
from steptrace.check.values import value_edges
from steptrace.ir.program import Loop, Op, Program

_Ends = tuple[str, str]


def edges_of(reference: Program, program: Program | None = None) -> tuple[Edge, ...]:
    """Every order that a schedule of ``reference`` must keep, reduced.

    The order of conflicting instances is that of the reference: steps one after the other, each in program order,
    micro-batches one after the other. What the edges imply together, along chains of instances that exist, is all
    pairs of conflicting instances and nothing beside. An edge at an op that no step lacks may stand for others; one
    through a loop or a peeled op may not, since a step may have no micro-batch.

    Where a step has several loops over micro-batches, any of them may run zero times, so that one between two others
    stands for nothing, and edges join all pairs. Only for loops on one lane the nearest one is enough, since places
    on a lane do not depend on how often a loop runs; so there the edges are those for the lanes of a schedule.

    Args:
      reference: the source with the schedule's laws and peeling applied in place (``reference_of``); a traced
        program is its own reference.
      program: the schedule whose lanes are to keep them, the reference itself by default.

    Returns:
      The edges, in program order of the later end, then of the earlier.
    """
    return edges_for(reference, _lanes_of_loops(program or reference))


def _lanes_of_loops(program: Program) -> tuple[tuple[str, str], ...]:
    """The lanes of ops in loops over micro-batches, where there are several such loops."""
    loops = [node for node in program.body if isinstance(node, Loop) and is_stream(node)]
    if len(loops) < _SEVERAL:
        return ()
    return tuple(sorted((node.id, node.lane) for loop in loops for node in loop.body if isinstance(node, Op)))


_SEVERAL = 2


@lru_cache(maxsize=64)
def edges_for(reference: Program, lanes: tuple[tuple[str, str], ...]) -> tuple[Edge, ...]:
    """The edges of a reference for given lanes of ops in loops, by id; see ``edges_of``."""
    units, placed = units_of(reference), dict(lanes)
    found = chain(value_edges(units), lifetime_edges(units), hazard_edges(units, placed), capacity_edges(units))
    known = reduced(found)
    edges = (*known, *exists_edges(units, known, placed))
    place = {unit.id: unit.index for unit in units}
    return tuple(
        sorted(edges, key=lambda edge: (place[edge.after], place[edge.before], edge.distance, edge.micro or 0))
    )


def reduced(edges: Iterable[Edge]) -> tuple[Edge, ...]:
    """The edges without those that another with the same ends implies."""
    best: dict[tuple[str, str, int, int | None, str], Edge] = {}
    for edge in edges:
        best.setdefault((edge.before, edge.after, edge.distance, edge.micro, edge.from_event), edge)
        known = best[edge.before, edge.after, edge.distance, edge.micro, edge.from_event]
        if edge.persists and not known.persists:
            best[edge.before, edge.after, edge.distance, edge.micro, edge.from_event] = edge
    kept = list(best.values())
    nearest: dict[tuple[str, str, str], int] = {}
    for edge in kept:
        if edge.persists and edge.micro is None:
            ends = (edge.before, edge.after, edge.from_event)
            nearest[ends] = min(nearest.get(ends, edge.distance), edge.distance)
    done = {
        (edge.before, edge.after, edge.distance, edge.micro): edge.persists
        for edge in kept
        if edge.from_event == "done"
    }
    return tuple(
        edge
        for edge in kept
        if not (
            edge.micro is None
            and edge.kind is not EdgeKind.CAPACITY
            and edge.distance > nearest.get((edge.before, edge.after, edge.from_event), edge.distance)
        )
        and not (
            edge.from_event == "issue"
            and done.get((edge.before, edge.after, edge.distance, edge.micro), False) >= edge.persists
            and (edge.before, edge.after, edge.distance, edge.micro) in done
        )
    )
