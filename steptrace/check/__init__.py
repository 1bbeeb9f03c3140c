"""Order: what must come before what, and whether a schedule keeps it. Loads without jax."""

from steptrace.check.edge import Edge, EdgeKind, Event
from steptrace.check.edges import edges_of
from steptrace.check.graph import Hop, find_cycle
from steptrace.check.laws import LAWS, Law, apply_law
from steptrace.check.legal import Room, allowing_staleness, blocking_edge, legal_places
from steptrace.check.peel import peel_first
from steptrace.check.places import Place, broken, keeps, lanes_of, places_of, slack
from steptrace.check.reference import reference_of
from steptrace.check.schedule import check_order, check_schedule, order_error, problems
from steptrace.check.units import Presence, Unit, Units, units_of
from steptrace.check.waits import Wait, waits_of
from steptrace.check.why import shortest_chain

__all__ = [
    "LAWS",
    "Edge",
    "EdgeKind",
    "Event",
    "Hop",
    "Law",
    "Place",
    "Presence",
    "Room",
    "Unit",
    "Units",
    "Wait",
    "allowing_staleness",
    "apply_law",
    "blocking_edge",
    "broken",
    "check_order",
    "check_schedule",
    "edges_of",
    "find_cycle",
    "keeps",
    "lanes_of",
    "legal_places",
    "order_error",
    "peel_first",
    "places_of",
    "problems",
    "reference_of",
    "shortest_chain",
    "slack",
    "units_of",
    "waits_of",
]
