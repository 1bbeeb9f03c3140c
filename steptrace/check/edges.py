"""All edges of a reference: one list, from which every order is judged."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from itertools import chain

from steptrace.check.capacity import capacity_edges
from steptrace.check.edge import Edge, EdgeKind
from steptrace.check.exists import exists_edges
from steptrace.check.hazards import hazard_edges
from steptrace.check.units import units_of
from steptrace.check.values import value_edges
from steptrace.ir.program import Program

_Ends = tuple[str, str]


@lru_cache(maxsize=64)
def edges_of(reference: Program) -> tuple[Edge, ...]:
    """Every order that a schedule of ``reference`` must keep, reduced.

    The order of conflicting instances is that of the reference: steps one after the other, each in program order,
    micro-batches one after the other. What the edges imply together, along chains of instances that exist, is all
    pairs of conflicting instances and nothing beside. An edge at an op that no step lacks may stand for others; one
    through a loop or a peeled op may not, since a step may have no micro-batch.

    Args:
      reference: the source with the schedule's laws and peeling applied in place (``reference_of``); a traced
        program is its own reference.

    Returns:
      The edges, in program order of the later end, then of the earlier.
    """
    units = units_of(reference)
    known = reduced(chain(value_edges(units), hazard_edges(units), capacity_edges(units)))
    edges = (*known, *exists_edges(units, known))
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
