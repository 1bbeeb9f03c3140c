"""Order: what must come before what, and whether a schedule keeps it. Loads without jax."""

from steptrace.check.edge import Edge, EdgeKind, Event
from steptrace.check.edges import edges_of
from steptrace.check.units import Presence, Unit, Units, units_of

__all__ = ["Edge", "EdgeKind", "Event", "Presence", "Unit", "Units", "edges_of", "units_of"]
