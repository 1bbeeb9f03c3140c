"""How much longer ops may take before the period of a schedule grows."""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import replace

from steptrace.cost.folded import Arc
from steptrace.cost.moments import WAITS
from steptrace.cost.period import Period
from steptrace.cost.ratio import better_circle


def slack(period: Period) -> dict[str, float]:
    """By op, how much longer each of its instances may take, all of them at once, before the period grows.

    Of an op that a circle passes several times, as one in a loop, each instance has its share of the room. An op on no
    circle is left out. What a run decides by the time stays as it is: a stage may come too late before the slack is
    used up.
    """
    return {op: _together(period, op, most) if most else 0.0 for op, most in instance_slack(period).items()}


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
    graph, ratio, late = period.graph, float(period.largest.ratio), period.largest.late
    scale = max([1.0, *map(abs, late)])
    outgoing: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for arc in graph.arcs:
        outgoing[arc.source].append((arc.target, max(0.0, _room(arc, ratio, late))))
    found: dict[str, float] = {}
    on_circle = {arc.target for arc in period.largest.circle} | {arc.source for arc in period.largest.circle}
    for event, (name, _) in enumerate(graph.names):
        if name.part >= WAITS or not name.op:
            continue
        room = 0.0 if event in on_circle else _shortest_round(outgoing, event, found.get(name.op, float("inf")))
        if room < found.get(name.op, float("inf")):
            found[name.op] = 0.0 if room < 1e-12 * scale else room
    return found


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


def _shortest_round(outgoing: dict[int, list[tuple[int, float]]], start: int, limit: float) -> float:
    """The least room of a circle through an event, no more than a limit."""
    best: dict[int, float] = {}
    queue = [(0.0, start)]
    while queue:
        room, at = heapq.heappop(queue)
        if room >= limit:
            return limit
        if at == start and room > 0:
            return room
        for target, more in outgoing[at]:
            if target == start:
                limit = min(limit, room + more)
            elif room + more < best.get(target, float("inf")):
                best[target] = room + more
                heapq.heappush(queue, (room + more, target))
    return limit
