"""Devices that several lanes send work to: in which order they do it, and whether a period may rest on that.

Where something waits for such a device the order in which it serves the lanes is that of a run, and it repeats itself
only if the lanes keep pace with one another: of lanes that do not, one runs ahead for ever. Where nothing waits for it
the order does not matter. The device is never idle while there is work, so in the long run it takes what all of its
work of a step takes, or as long as the slowest lane that sends it; whichever lane runs ahead, and however far.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Set
from fractions import Fraction
from itertools import pairwise

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
        self._known: dict[frozenset[int], Fraction] = {}

    def part(self, sends: list[Send], events: Events) -> bool:
        """Whether a lane runs ahead of another one whatever the order is in which a device serves them.

        It does so if the device has no order in this graph, and the lane is faster though it waits for nothing that
        the device does.
        """
        served = {events.names[send.event] for send in sends}
        paces: dict[str, Fraction] = {}
        free: set[str] = set()
        for lane, outside in self._sent(sends, events):
            event = next((one for one in outside if self._graph.names[one][0].where == lane), None)
            if event is not None and lane not in paces:
                paces[lane] = self._of(event)
                if not any(self._graph.names[one][0] in served for one in self._behind(event)):
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
            pace = found[lane] = max(map(self._of, sorted(mine)), default=Fraction(0))
            if not ordered and any(self._of(source) > pace for source in outside - mine):
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
                pace = float(self._of(numbers[events.names[send.event], away]))
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

    def _of(self, event: int) -> Fraction:
        """Seconds a turn at which an event comes: the largest ratio of the circles that lead to it."""
        behind = self._behind(event)
        if self._largest.circle and self._largest.circle[0].target in behind:
            return self._largest.ratio
        if behind not in self._known:
            self._known[behind] = largest_ratio(_part(self._graph, behind)).ratio
        return self._known[behind]

    def _behind(self, event: int) -> frozenset[int]:
        found, stack = {event}, [event]
        while stack:
            for arc in self._into[stack.pop()]:
                if arc.source not in found:
                    found.add(arc.source)
                    stack.append(arc.source)
        return frozenset(found)


def _part(graph: Folded, events: Set[int]) -> Folded:
    """The graph of some events."""
    numbers = {event: at for at, event in enumerate(sorted(events))}
    arcs = tuple(
        Arc(numbers[arc.source], numbers[arc.target], arc.seconds, arc.turns)
        for arc in graph.arcs
        if arc.source in numbers and arc.target in numbers
    )
    return Folded(tuple(graph.names[event] for event in sorted(events)), arcs, graph.steps)
