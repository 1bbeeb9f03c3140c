"""The events of a long run folded onto one period: the graph whose circles are the bottlenecks of a schedule."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from steptrace.cost.moments import Events, Name


@dataclass(frozen=True, slots=True)
class Arc:
    """``target`` comes ``seconds`` after ``source`` of so many turns earlier."""

    source: int
    target: int
    seconds: float
    turns: int


@dataclass(frozen=True)
class Folded:
    """A graph that repeats itself every turn.

    Attributes:
      names: of each event, and the step within the turn.
      arcs: what each comes after, in the order of `forwards`.
      steps: steps of a turn.
    """

    names: tuple[tuple[Name, int], ...]
    arcs: tuple[Arc, ...]
    steps: int


def folded(events: Events, first: int, steps: int) -> Folded | None:
    """The events of ``steps`` steps from step ``first`` on, if those of as many steps later come after the same.

    Args:
      events: a run through at least ``first + 2 * steps`` steps.
      first: where the turn begins; an arc that reaches further back than step 0 has none to lead from.
      steps: how many steps repeat themselves.

    Returns:
      The graph, None where the two turns differ.
    """
    inside = ([], [])  # type: tuple[list[int], list[int]]
    for event, step in enumerate(events.steps):
        turn = (step - first) // steps
        if turn in (0, 1):
            inside[turn].append(event)
    numbers = {(events.names[event], (events.steps[event] - first) % steps): at for at, event in enumerate(inside[1])}
    if len(inside[0]) != len(inside[1]) or len(numbers) != len(inside[1]):
        return None
    one, other = (_arcs(events, chosen, numbers, first + turn * steps, steps) for turn, chosen in enumerate(inside))
    if one is None or one != other:
        return None
    arcs = [Arc(source, target, seconds, turns) for (source, target, turns), seconds in one.items()]
    return Folded(tuple(numbers), forwards(arcs, len(numbers)), steps)


def forwards(arcs: Iterable[Arc], size: int) -> tuple[Arc, ...]:
    """Arcs in such an order that those within a turn lead forwards: once through them is all through a turn.

    Args:
      arcs: the arcs.
      size: how many events there are; as they are numbered, where arcs within a turn lead around in a circle.
    """
    ordered = sorted(arcs, key=lambda arc: (arc.target, arc.source))
    after: list[list[int]] = [[] for _ in range(size)]
    left = [0] * size
    for arc in ordered:
        if arc.turns <= 0:
            after[arc.source].append(arc.target)
            left[arc.target] += 1
    ready = [event for event in range(size) if not left[event]]
    heapify(ready)
    place: dict[int, int] = {}
    while ready:
        event = heappop(ready)
        place[event] = len(place)
        for target in after[event]:
            left[target] -= 1
            if not left[target]:
                heappush(ready, target)
    if len(place) < size:
        return tuple(ordered)
    return tuple(sorted(ordered, key=lambda arc: (place[arc.target], place[arc.source])))


def _arcs(
    events: Events, chosen: list[int], numbers: dict[tuple[Name, int], int], first: int, steps: int
) -> dict[tuple[int, int, int], float] | None:
    """The longest arc for each source, target and number of turns; None where an event is none of those that repeat."""
    found: dict[tuple[int, int, int], float] = {}
    for event in chosen:
        target = numbers.get((events.names[event], events.steps[event] - first))
        if target is None:
            return None
        for before, seconds in events.after[event]:
            away = events.steps[before] - first
            source = numbers.get((events.names[before], away % steps))
            if events.steps[before] < 0 or source is None:
                continue  # it happens once, and what happens every turn falls behind it
            key = (source, target, -(away // steps))
            found[key] = max(found.get(key, seconds), seconds)
    return found
