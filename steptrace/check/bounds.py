"""What a schedule holds ahead of its steps without a bound: said in its report, since no order is wrong with it."""

from __future__ import annotations

from steptrace.check.access import locations_of
from steptrace.check.places import places_of
from steptrace.check.units import units_of
from steptrace.ir.program import Program
from steptrace.ir.resource import ResourceKind


def unbounded(program: Program, reference: Program) -> tuple[str, ...]:
    """The cells that a schedule fills ahead of their step on one lane and uses on another, with no capacity.

    Such a lane may run as far ahead as other edges let it, and what it has made stays in memory. One bound is enough
    for all that an op fills: where it waits for room in one of its cells, it fills no other.

    Args:
      program: the schedule.
      reference: its reference.

    Returns:
      Their names, in the order of the resources.
    """
    places = places_of(program)
    if len({place.lane for place in places.values()}) == 1:
        return ()
    cells = [location for location in locations_of(units_of(reference)) if location.resource.kind is ResourceKind.CELL]
    filled = [
        (cell, touch.unit.id) for cell in cells for touch in cell.touches if touch.writes and touch.index is not None
    ]
    bounded = {id for cell, id in filled if cell.resource.capacity}
    ahead = [(cell, id) for cell, id in filled if places[id].step_shift > 0 and id not in bounded]
    shared = (
        cell.resource.name
        for cell, id in ahead
        if any(places[touch.unit.id].lane != places[id].lane for touch in cell.touches)
    )
    return tuple(dict.fromkeys(shared))
