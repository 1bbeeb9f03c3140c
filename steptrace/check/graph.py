"""One graph over the lanes of a schedule: it has a circle without progress exactly when the lanes lock up.

Nodes are instances of one turn. A lane leads from each node to the next at distance 0, and from its last to its first
at distance 1, the next turn. An edge of the reference leads at ``distance + shift(before) - shift(after)`` turns.
Steps repeat, so the graph stands for all of them; nothing in it counts steps.

*All step counts.* A circle of total distance 0 or less demands that an instance waits for itself, or for a
later one. Without such a circle every instance waits only for finitely many earlier ones, so every run ends. Near the
first and the last step instances are missing, which only removes waits.

*Issue and done.* The work of a call that only sends it off is done later, on a device that finishes in the order of
issue. Nothing leads into a ``done`` but its own issue and earlier calls of that device, so a circle through it can be
shortened to one through issues alone. One node for each instance is enough.

*All micro-batch counts.* A loop over micro-batches is written out with a fixed number of rounds. With one round more
the graph has all orders that it had before, so the largest number decides, and smaller ones, unequal ones and 0 are
contained in it. A shortest circle is on each lane once; inside the loop it goes back by at most the largest shift
on each lane, and forward along edges by their micro-batch distance. So rounds beyond ``2 + lanes * (largest
shift + largest distance)`` repeat what earlier ones show. A loop that one lane issues as a whole goes back by its shift
only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from steptrace.check.edge import Edge
from steptrace.check.places import Place, lanes_of, places_of, slack
from steptrace.ir.program import Loop, Program


@dataclass(frozen=True, slots=True)
class Hop:
    """One link of a circle.

    Attributes:
      before: id of the op it starts from.
      after: id of the op it leads to.
      turns: how many turns later, in the schedule.
      edge: the edge, or None where the lane itself runs one after the other.
      lane: that lane, ``""`` for an edge.
    """

    before: str
    after: str
    turns: int
    edge: Edge | None
    lane: str


@dataclass(frozen=True, slots=True)
class _Arc:
    source: int
    target: int
    turns: int
    edge: Edge


@dataclass(frozen=True)
class _Graph:
    """Nodes by number: each lane a run of numbers, in its order.

    Attributes:
      ids: the op of each node.
      lanes: name, first and one past the last number of each lane.
      arcs: the edges between lanes.
    """

    ids: tuple[str, ...]
    lanes: tuple[tuple[str, int, int], ...]
    arcs: tuple[_Arc, ...]


def find_cycle(program: Program, edges: tuple[Edge, ...]) -> tuple[Hop, ...]:
    """A circle without progress over lane order and edges, empty when there is none.

    Args:
      program: a schedule whose lanes keep the edges between their own ops.
      edges: those of its reference.
    """
    graph = _graph(program, edges)
    if not graph.arcs:
        return ()
    search = _Search(graph)
    return search.circle()


def _graph(program: Program, edges: tuple[Edge, ...]) -> _Graph:
    places = places_of(program)
    crossing = [edge for edge in edges if places[edge.before].lane != places[edge.after].lane]
    if not crossing:
        return _Graph((), (), ())
    loops = {node.id: node for node in program.body if isinstance(node, Loop)}
    rounds = _rounds(loops, places, crossing)
    ids: list[str] = []
    lanes: list[tuple[str, int, int]] = []
    numbers: dict[tuple[str, int], int] = {}
    for lane, run in lanes_of(program).items():
        first = len(ids)
        for place, micro in _sequence(run, loops, rounds):
            numbers[place.id, micro] = len(ids)
            ids.append(place.id)
        lanes.append((lane, first, len(ids)))
    arcs = [arc for edge in crossing for arc in _arcs(edge, places, loops, rounds, numbers)]
    return _Graph(tuple(ids), tuple(lanes), tuple(arcs))


def _rounds(loops: Mapping[str, Loop], places: Mapping[str, Place], crossing: list[Edge]) -> dict[str, int]:
    """One past the last round that is written out, for each loop."""
    shifts, lanes, inside = dict.fromkeys(loops, 0), defaultdict[str, set[str]](set), dict.fromkeys(loops, 0)
    for place in places.values():
        if place.loop is not None:
            shifts[place.loop] = max(shifts[place.loop], place.micro_shift)
            lanes[place.loop].add(place.lane)
    for edge in crossing:
        loop = places[edge.before].loop
        if edge.micro is not None and loop is not None:
            inside[loop] = max(inside[loop], edge.micro)
    rounds = {}
    for id, one in loops.items():
        apart = len(lanes[id])
        rounds[id] = one.start + 2 + (shifts[id] if apart < _SEVERAL else apart * (shifts[id] + inside[id]))
    return rounds


_SEVERAL = 2


def _sequence(run: list[Place], loops: Mapping[str, Loop], rounds: Mapping[str, int]) -> Iterator[tuple[Place, int]]:
    """One turn of a lane: its ops in order, the rounds of loops written out."""
    at = 0
    while at < len(run):
        place = run[at]
        if place.loop is None:
            yield place, 0
            at += 1
            continue
        first = at
        while at < len(run) and run[at].loop == place.loop:
            at += 1
        body = run[first:at]
        start, end = loops[place.loop].start, rounds[place.loop]
        for turn in range(start - max(other.micro_shift for other in body), end):
            for other in body:
                if start <= turn + other.micro_shift < end:
                    yield other, turn + other.micro_shift


def _arcs(
    edge: Edge,
    places: Mapping[str, Place],
    loops: Mapping[str, Loop],
    rounds: Mapping[str, int],
    numbers: Mapping[tuple[str, int], int],
) -> Iterator[_Arc]:
    before, after = places[edge.before], places[edge.after]
    if edge.micro is None:
        last = rounds[before.loop] - 1 if before.loop is not None else 0
        first = loops[after.loop].start if after.loop is not None else 0
        turns = slack(edge, before, after)
        yield _Arc(numbers[edge.before, last], numbers[edge.after, first], turns, edge)
        return
    assert before.loop is not None, "an edge counts micro-batches inside a loop"
    for micro in range(loops[before.loop].start, rounds[before.loop] - edge.micro):
        yield _Arc(numbers[edge.before, micro], numbers[edge.after, micro + edge.micro], 0, edge)


class _Search:
    """Looks for a circle of total distance 0 or less.

    Distances are relaxed lane by lane, forwards along each lane and around it once. A shortest path is on each lane
    once, so without a circle of negative distance this settles after as many rounds as there are lanes; then only
    edges that are tight can be part of a circle of distance 0.
    """

    def __init__(self, graph: _Graph) -> None:
        self.graph = graph
        self.far = [0] * len(graph.ids)
        self.via: list[tuple[int, int, Edge | None] | None] = [None] * len(graph.ids)

    def circle(self) -> tuple[Hop, ...]:
        """The circle, empty when there is none."""
        rounds = 0
        while self._relax():
            rounds += 1
            if rounds > len(self.graph.lanes) + 1:
                found = self._in_predecessors()
                if found:
                    return self._hops(found)
        return self._hops(self._in_tight())

    def _relax(self) -> bool:
        changed = False
        for arc in self.graph.arcs:
            changed |= self._improve(arc.source, arc.target, arc.turns, arc.edge)
        for _, first, end in self.graph.lanes:
            for _ in range(2):
                for at in range(first, end - 1):
                    changed |= self._improve(at, at + 1, 0, None)
                changed |= self._improve(end - 1, first, 1, None)
        return changed

    def _improve(self, source: int, target: int, turns: int, edge: Edge | None) -> bool:
        if self.far[source] + turns >= self.far[target]:
            return False
        self.far[target] = self.far[source] + turns
        self.via[target] = (source, turns, edge)
        return True

    def _in_predecessors(self) -> list[tuple[int, int, int, Edge | None]]:
        """A circle among the last improvements: such a circle is negative."""
        state = [0] * len(self.via)
        for start in range(len(self.via)):
            path, at = [], start
            while state[at] == 0:
                state[at] = 1
                path.append(at)
                step = self.via[at]
                if step is None:
                    break
                at = step[0]
            else:
                if state[at] == 1:
                    return self._back_from(at)
            for node in path:
                state[node] = 2
        return []

    def _back_from(self, start: int) -> list[tuple[int, int, int, Edge | None]]:
        links: list[tuple[int, int, int, Edge | None]] = []
        at = start
        while not links or at != start:
            step = self.via[at]
            assert step is not None, "every node of a circle has one before it"
            links.append((step[0], at, step[1], step[2]))
            at = step[0]
        return links[::-1]

    def _in_tight(self) -> list[tuple[int, int, int, Edge | None]]:
        """A circle of links that cannot be relaxed and leave no room: such a circle has distance 0."""
        links: dict[int, list[tuple[int, int, Edge | None]]] = defaultdict(list)
        for arc in self.graph.arcs:
            if self.far[arc.source] + arc.turns == self.far[arc.target]:
                links[arc.source].append((arc.target, arc.turns, arc.edge))
        for _, first, end in self.graph.lanes:
            for at in range(first, end):
                target, turns = (at + 1, 0) if at + 1 < end else (first, 1)
                if self.far[at] + turns == self.far[target]:
                    links[at].append((target, turns, None))
        return _circle_in(links)

    def _hops(self, links: list[tuple[int, int, int, Edge | None]]) -> tuple[Hop, ...]:
        """A circle as hops, stretches along a lane joined; it starts with an edge."""
        start = next((at for at, link in enumerate(links) if link[3] is not None), 0)
        hops: list[Hop] = []
        for source, target, turns, edge in links[start:] + links[:start]:
            before, after = self.graph.ids[source], self.graph.ids[target]
            if edge is not None:
                hops.append(Hop(before, after, turns, edge, ""))
            elif hops and hops[-1].edge is None:
                hops[-1] = Hop(hops[-1].before, after, hops[-1].turns + turns, None, hops[-1].lane)
            else:
                hops.append(Hop(before, after, turns, None, self._lane(source)))
        return tuple(hops)

    def _lane(self, node: int) -> str:
        return next(name for name, first, end in self.graph.lanes if first <= node < end)


def _circle_in(links: Mapping[int, list[tuple[int, int, Edge | None]]]) -> list[tuple[int, int, int, Edge | None]]:
    """Any circle of a graph, by depth-first search."""
    done: set[int] = set()
    for start in list(links):
        if start in done:
            continue
        path: list[tuple[int, int, int, Edge | None]] = []
        open_ = {start: 0}
        stack = [(start, iter(links.get(start, ())))]
        while stack:
            node, rest = stack[-1]
            step = next(rest, None)
            if step is None:
                stack.pop()
                done.add(node)
                del open_[node]
                if path:
                    path.pop()
                continue
            target, turns, edge = step
            if target in open_:
                return [*path[open_[target] :], (node, target, turns, edge)]
            if target not in done:
                path.append((node, target, turns, edge))
                open_[target] = len(path)
                stack.append((target, iter(links.get(target, ()))))
    return []
