"""Devices that several lanes send work to: in which order they do it, and whether a period may rest on that.

Where something waits for such a device the order in which it serves the lanes is that of a run, and it repeats itself
only if the lanes keep pace with one another: of lanes that do not, one runs ahead for ever. Where nothing waits for it
the order does not matter. The device is never idle while there is work, so in the long run it takes what all of its
work of a step takes, or as long as the slowest lane that sends it; whichever lane runs ahead, and however far.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from itertools import pairwise

from steptrace.cost.components import components
from steptrace.cost.folded import Arc, Folded
from steptrace.cost.moments import Events, Name, Send, SendKey
from steptrace.cost.ratio import Largest, largest_ratio


def shared(events: Events) -> frozenset[str]:
    """The devices that several lanes send work to."""
    return frozenset(device for device, sends in events.sends.items() if len({send.lane for send in sends}) > 1)


def unawaited(events: Events) -> frozenset[str]:
    """The devices that nothing outside of them waits for."""
    device_of = {send.event: device for device, sends in events.sends.items() for send in sends}
    awaited = {
        device_of[moment.event]
        for event, after in enumerate(events.after)
        for moment in after
        if moment.event in device_of and device_of.get(event) != device_of[moment.event]
    }
    return frozenset(events.sends) - awaited


def in_turn(sends: list[Send], events: Events, first: int, steps: int) -> bool:
    """Whether a device does its work of a turn in one round, in the turn that begins at step ``first``."""
    before: dict[tuple[Name, int], tuple[tuple[Name, int], int]] = {}
    for last, send in pairwise(sends):
        away = events.steps[send.event] - first
        if 0 <= away < steps:
            back, at = divmod(events.steps[last.event] - first, steps)
            before[events.names[send.event], away] = (events.names[last.event], at), -back
    if not before:
        return True
    start = next(iter(before))
    here, turns = before[start]
    for _ in range(len(before) - 1):
        if here == start or here not in before:
            return False
        here, more = before[here]
        turns += more
    return here == start and turns == 1


class Paces:
    """How fast the events of a graph come, each by itself: none faster than what it comes after.

    Args:
      graph: the graph.
      largest: its largest ratio.
    """

    def __init__(self, graph: Folded, largest: Largest) -> None:
        self._graph, self._largest = graph, largest
        self._into: dict[int, list[Arc]] = defaultdict(list)
        for arc in graph.arcs:
            self._into[arc.target].append(arc)
        self._paces = self._of_all()

    def part(self, sends: list[Send], events: Events) -> bool:
        """Whether a lane runs ahead of another one whatever the order is in which a device serves them.

        It does so if the device has no order in this graph, and the lane is faster though it waits for nothing that
        the device does.
        """
        served = {events.names[send.event] for send in sends}
        behind = self._behind(event for event, (name, _) in enumerate(self._graph.names) if name in served)
        paces: dict[str, Fraction] = {}
        free: set[str] = set()
        for lane, outside in self._sent(sends, events):
            event = next((one for one in outside if self._graph.names[one][0].where == lane), None)
            if event is not None and lane not in paces:
                paces[lane] = self._paces[event]
                if event not in behind:
                    free.add(lane)
        return any(paces[lane] < max(paces.values()) for lane in free)

    def agree(self, sends: list[Send], events: Events, *, ordered: bool) -> bool:
        """Whether a device may be taken as it was.

        Args:
          sends: what the device was sent.
          events: the events that the graph was folded from.
          ordered: whether it serves in the order of a run: then the lanes must keep pace with one another. Otherwise
            all that its work waits for must come as fast as the lane that sends it.
        """
        found: dict[str, Fraction] = {}
        for lane, outside in self._sent(sends, events):
            mine = {source for source in outside if self._graph.names[source][0].where == lane}
            pace = found[lane] = max((self._paces[source] for source in mine), default=Fraction(0))
            if not ordered and any(self._paces[source] > pace for source in outside - mine):
                return False
        return not ordered or len(set(found.values())) <= 1

    def reached(self, sends: list[Send], events: Events, first: int, ends: Mapping[SendKey, float]) -> bool:
        """Whether work that a device did in a run came as fast as it does in this graph, from one turn to the next.

        An order may stay the same for some turns before the run has settled, and be another one then.

        Args:
          sends: what the device was sent.
          events: the events that the graph was folded from.
          first: the step at which the first of the two turns begins.
          ends: when each piece of work ended in the run, in seconds.
        """
        steps, numbers = self._graph.steps, {name: at for at, name in enumerate(self._graph.names)}
        for send in sends:
            away = events.steps[send.event] - first
            if 0 <= away < steps:
                device, op, step, micro, what = send.key
                later = ends[device, op, step + steps, micro, what]
                grown = later - ends[send.key]
                pace = float(self._paces[numbers[events.names[send.event], away]])
                if abs(grown - pace) > 1e-9 * max(1.0, later):
                    return False
        return True

    def _sent(self, sends: list[Send], events: Events) -> Iterator[tuple[str, set[int]]]:
        """For each piece of a device's work: the lane that sends it, and what it comes after but other such work."""
        lanes = {events.names[send.event]: send.lane for send in sends}
        for event, (name, _) in enumerate(self._graph.names):
            if name in lanes:
                before = {arc.source for arc in self._into[event]}
                yield lanes[name], {source for source in before if self._graph.names[source][0] not in lanes}

    def _of_all(self) -> list[Fraction]:
        """Of each event, seconds a turn at which it comes: the largest ratio of the circles that lead to it."""
        paces = [Fraction(0)] * len(self._graph.names)
        inner: dict[int, list[Arc]] = defaultdict(list)
        parts = components(self._graph.arcs, len(paces))
        part_of = {event: at for at, part in enumerate(parts) for event in part}
        for arc in self._graph.arcs:
            if part_of[arc.source] == part_of[arc.target]:
                inner[part_of[arc.source]].append(arc)
        largest = part_of[self._largest.circle[0].target] if self._largest.circle else None
        for at, part in enumerate(parts):
            before = (paces[arc.source] for event in part for arc in self._into[event])
            pace = max(before, default=Fraction(0))
            if at == largest:
                pace = self._largest.ratio
            elif inner[at]:
                pace = max(pace, largest_ratio(_part(self._graph, part, inner[at])).ratio)
            for event in part:
                paces[event] = pace
        return paces

    def _behind(self, events: Iterable[int]) -> set[int]:
        """The events that some events lead to, and these."""
        after: dict[int, list[int]] = defaultdict(list)
        for arc in self._graph.arcs:
            after[arc.source].append(arc.target)
        found = set(events)
        stack = list(found)
        while stack:
            for target in after[stack.pop()]:
                if target not in found:
                    found.add(target)
                    stack.append(target)
        return found


def _part(graph: Folded, events: Iterable[int], arcs: Iterable[Arc]) -> Folded:
    """The graph of some events, and of the arcs between them."""
    numbers = {event: at for at, event in enumerate(sorted(events))}
    inner = tuple(Arc(numbers[arc.source], numbers[arc.target], arc.seconds, arc.turns) for arc in arcs)
    return Folded(tuple(graph.names[event] for event in numbers), inner, graph.steps)
