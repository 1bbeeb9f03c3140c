"""The waits of a schedule: the edges that the order of the lanes does not give by itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from steptrace.check.edge import Edge
from steptrace.check.edges import edges_of
from steptrace.check.places import Place, places_of, slack
from steptrace.check.units import ALWAYS_PRESENT, Units, units_of
from steptrace.ir.program import Program


@dataclass(frozen=True, slots=True)
class Wait:
    """One lane waits for another, or for a device.

    ``after`` of step j waits until the lane of ``before`` is past its place of step ``j - distance`` (or
    micro-batch, for an edge that counts them), whether or not the op ran there; where the edge starts at ``done``
    and the call only sends work off, until that work is finished.

    Attributes:
      edge: the edge it keeps.
      from_lane: the lane that issues ``before``.
      to_lane: the lane that waits.
      device: the device whose work it waits for, ``""`` when the issue of the call is enough, or its return.
    """

    edge: Edge
    from_lane: str
    to_lane: str
    device: str = ""

    @property
    def before(self) -> str:
        """Id of the op that is waited for."""
        return self.edge.before

    @property
    def after(self) -> str:
        """Id of the op that waits."""
        return self.edge.after


def waits_of(program: Program, reference: Program) -> tuple[Wait, ...]:
    """The waits that a schedule needs, reduced.

    An edge inside a lane is kept by the lane's order, unless it waits for work on a device. A wait is left out when
    another one between the same lanes, from an op no earlier to an op no later, and with no greater distance, implies
    it in every step: the two ends in between exist whenever the outer ones do. An op whose condition is false still
    waits and still counts as passed, so waits may be reduced through it.

    Args:
      program: a schedule that ``check_order`` accepts.
      reference: its reference.

    Returns:
      The waits in the order of the schedule, by the op that waits.
    """
    units, places = units_of(reference), places_of(program)
    waits = []
    for edge in edges_of(reference, program):
        a, b = places[edge.before], places[edge.after]
        device = units[edge.before].device if edge.from_event == "done" else ""
        if a.lane != b.lane or device:
            waits.append(Wait(edge, a.lane, b.lane, device))
    order = {id: at for at, id in enumerate(places)}
    kept = _reduced(waits, units, places)
    return tuple(sorted(kept, key=lambda wait: (order[wait.after], order[wait.before], wait.edge.distance)))


def _reduced(waits: list[Wait], units: Units, places: Mapping[str, Place]) -> list[Wait]:
    groups: dict[tuple[object, ...], list[Wait]] = defaultdict(list)
    for wait in waits:
        a, b = places[wait.before], places[wait.after]
        loop = a.loop if wait.edge.micro is not None else None
        shifts = (a.step_shift, b.step_shift, a.micro_shift if loop else 0, b.micro_shift if loop else 0)
        groups[wait.from_lane, wait.to_lane, loop, *shifts, wait.device].append(wait)
    return [wait for group in groups.values() for wait in _undominated(group, units, places)]


@dataclass
class _Front:
    """What the waits passed so far imply: for each distance the latest op that was waited for.

    Attributes:
      definite: by distance, among waits whose two ops every step has.
      of_source: by the op that is waited for and distance, the waits whose waiting op every step has.
      of_target: by the op that waits and distance, among waits for an op that every step has.
    """

    definite: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    of_source: set[tuple[str, int]] = field(default_factory=set)
    of_target: dict[tuple[str, int], tuple[int, int, int]] = field(default_factory=dict)


def _undominated(group: list[Wait], units: Units, places: Mapping[str, Place]) -> list[Wait]:
    """Waits of one pair of lanes and one pair of shifts that no other one implies."""
    front = _Front()
    distances = sorted({_distance(wait, places) for wait in group})
    group.sort(key=lambda wait: (_key(places[wait.after]), _distance(wait, places), _reversed(places[wait.before])))
    kept = []
    for wait in group:
        source, apart = _key(places[wait.before]), _distance(wait, places)
        nearer = [distance for distance in distances if distance <= apart]
        implied = any(
            front.definite.get(distance, _NOWHERE) >= source
            or (wait.before, distance) in front.of_source
            or front.of_target.get((wait.after, distance), _NOWHERE) >= source
            for distance in nearer
        )
        if implied:
            continue
        kept.append(wait)
        inside = wait.edge.micro is not None
        definite_source = inside or units[wait.before].presence == ALWAYS_PRESENT
        definite_target = inside or units[wait.after].presence == ALWAYS_PRESENT
        if definite_source and definite_target:
            front.definite[apart] = max(front.definite.get(apart, _NOWHERE), source)
        if definite_target:
            front.of_source.add((wait.before, apart))
        if definite_source:
            at = (wait.after, apart)
            front.of_target[at] = max(front.of_target.get(at, _NOWHERE), source)
    return kept


_NOWHERE = (-1, 0, 0)


def _distance(wait: Wait, places: Mapping[str, Place]) -> int:
    return slack(wait.edge, places[wait.before], places[wait.after])


def _key(place: Place) -> tuple[int, int, int]:
    """The order of ops on a lane: of the last instances in a turn, and as well of the first ones."""
    return (place.position, -place.micro_shift, place.inner)


def _reversed(place: Place) -> tuple[int, int, int]:
    position, shift, inner = _key(place)
    return (-position, -shift, -inner)
