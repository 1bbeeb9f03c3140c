"""How much longer ops may take before the period of a schedule grows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from steptrace.cost.folded import Arc
from steptrace.cost.moments import WAITS
from steptrace.cost.period import Period
from steptrace.cost.ratio import better_circle

if TYPE_CHECKING:
    import numpy as np

_AT_ONCE = 64
"""Borders that are looked at together."""


def slack(period: Period, single: Mapping[str, float] | None = None) -> dict[str, float]:
    """By op, how much longer each of its instances may take, all of them at once, before the period grows.

    Of an op that a circle passes several times, as one in a loop, each instance has its share of the room. An op on no
    circle is left out. What a run decides by the time stays as it is: a stage may come too late before the slack is
    used up.

    Args:
      period: the period.
      single: what `instance_slack` has given for it, where that is known.
    """
    single = instance_slack(period) if single is None else single
    return {op: _together(period, op, most) if most else 0.0 for op, most in single.items()}


def _together(period: Period, op: str, most: float) -> float:
    """How much longer all instances of an op may take: the least room of a circle for each time that it passes one.

    The same way as `largest_ratio`: while a circle is too long with that much, its own share is the next candidate.
    """
    graph, ratio = period.graph, float(period.largest.ratio)
    instances = [
        (name.op, name.rounds, step) if name.op == op and name.part < WAITS else None for name, step in graph.names
    ]
    enters = {arc: instances[arc.target] not in (None, instances[arc.source]) for arc in graph.arcs}
    plain = {(arc.source, arc.target, arc.turns): arc for arc in graph.arcs}
    while True:
        longer = [replace(arc, seconds=arc.seconds + most) if enters[arc] else arc for arc in graph.arcs]
        circle = [plain[arc.source, arc.target, arc.turns] for arc in better_circle(longer, len(instances), ratio)[0]]
        times = sum(enters[arc] for arc in circle)
        if not times:
            return most
        share = max(0.0, sum(ratio * arc.turns - arc.seconds for arc in circle) / times)
        if share >= most * (1 - 1e-12):
            return most
        most = share


def instance_slack(period: Period) -> dict[str, float]:
    """By op, how much longer one instance of it may take before the period grows, of all the least; 0 on the circle.

    An instance on no circle may take as long as it likes; its op is left out.
    """
    graph, late = period.graph, period.largest.late
    least = 1e-12 * max([1.0, *map(abs, late)])
    found: dict[str, float] = {}
    for (name, _), room in zip(graph.names, _least_rooms(period), strict=True):
        if name.part < WAITS and name.op and room < found.get(name.op, math.inf):
            found[name.op] = 0.0 if room < least else room
    return found


def _least_rooms(period: Period) -> list[float]:
    """For each event the least room of a circle through it: 0 on the largest circle, infinite where there is none.

    Every circle leads from one turn to a later one somewhere. So the least one through an event is the way from an
    event at such a border to it, and the way back there, for the border event where both are least.
    """
    import numpy as np

    graph, ratio, late = period.graph, float(period.largest.ratio), period.largest.late
    arcs = [(arc.source, arc.target, max(0.0, _room(arc, ratio, late))) for arc in graph.arcs]
    least = np.full(len(graph.names), np.inf)
    crossing = [arc for arc in graph.arcs if arc.turns > 0]
    sources, targets = {arc.source for arc in crossing}, {arc.target for arc in crossing}
    border = sorted(sources if len(sources) < len(targets) else targets)
    for start in range(0, len(border), _AT_ONCE):
        columns = {event: at for at, event in enumerate(border[start : start + _AT_ONCE])}
        away, back = np.full((2, len(least), len(columns)), np.inf)
        for event, at in columns.items():
            back[event, at] = 0.0
        for source, target, room in arcs:
            if source in columns:
                away[target, columns[source]] = min(away[target, columns[source]], room)
        _shortest(away, arcs)
        _shortest(back, [(target, source, room) for source, target, room in reversed(arcs)])
        least = np.minimum(least, (away + back).min(axis=1))
    for arc in period.largest.circle:
        least[[arc.source, arc.target]] = 0.0
    return [float(room) for room in least]


def _shortest(rooms: np.ndarray, arcs: Sequence[tuple[int, int, float]]) -> None:
    """Let each row be the least of itself and of those that an arc leads from, with the arc's room, until all are."""
    import numpy as np

    while True:
        before = rooms.copy()
        for source, target, room in arcs:
            np.minimum(rooms[target], rooms[source] + room, out=rooms[target])
        if np.array_equal(before, rooms):
            return


def tight_s(period: Period) -> float:
    """Seconds that all circles without room take together, where `critical` is one of them: all must become shorter."""
    graph, ratio, late = period.graph, float(period.largest.ratio), period.largest.late
    least = 1e-9 * max([1.0, *map(abs, late)])
    arcs = [arc for arc in graph.arcs if _room(arc, ratio, late) <= least]
    while True:
        sources, targets = {arc.source for arc in arcs}, {arc.target for arc in arcs}
        kept = [arc for arc in arcs if arc.source in targets and arc.target in sources]
        if len(kept) == len(arcs):
            break
        arcs = kept
    longest: dict[int, float] = {}
    for arc in arcs:
        longest[arc.target] = max(longest.get(arc.target, 0.0), arc.seconds)
    return sum(longest.values())


def _room(arc: Arc, ratio: float, late: tuple[float, ...]) -> float:
    return late[arc.target] - late[arc.source] - (arc.seconds - ratio * arc.turns)
