"""The largest ratio of latency to distance over the circles of a graph, exactly.

Cycle-cancelling in the manner of Newton's method (Dinkelbach 1967 for ratios; Dasdan 2004 compares it with Howard's
policy iteration for circles): with a candidate for the ratio, each arc is worth its seconds less the ratio times its
turns. Where some circle is worth more than nothing, its own ratio is the next candidate, which is larger; where none
is, the candidate is the largest ratio, and the longest paths that are left say how much room each arc has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from steptrace.cost.folded import Arc, Folded

_ROUNDING = 1e-12
"""Share of the largest number in sight below which a gain is taken for rounding."""


class Standstill(ValueError):  # noqa: N818
    """A circle of events leads back to where it began in no turns: the order that was taken for theirs is none."""


@dataclass(frozen=True, slots=True)
class Largest:
    """The largest ratio.

    Attributes:
      ratio: seconds a turn, exact for the seconds as they are given; 0 where there is no circle.
      circle: the arcs of a circle that has it.
      late: for each event, when it happens at that ratio, to a constant for each part that hangs together: the longest
        paths, with which no arc is worth more than nothing.
    """

    ratio: Fraction
    circle: tuple[Arc, ...]
    late: tuple[float, ...]


def largest_ratio(graph: Folded) -> Largest:
    """The largest ratio of seconds to turns over the circles of a graph.

    Args:
      graph: every circle of it has a positive number of turns.
    """
    ratio, circle = Fraction(0), ()  # type: tuple[Fraction, tuple[Arc, ...]]
    while True:
        found, late = better_circle(graph.arcs, len(graph.names), float(ratio))
        if not found:
            return Largest(ratio, circle, late)
        next_ = ratio_of(found)
        if next_ <= ratio:
            return Largest(ratio, circle, late)
        ratio, circle = next_, found


def ratio_of(circle: Sequence[Arc]) -> Fraction:
    """Seconds a turn of a circle.

    Raises:
      Standstill: it has no turns.
    """
    turns = sum(arc.turns for arc in circle)
    if turns <= 0:
        raise Standstill("a circle of events has no progress")
    return sum((Fraction(arc.seconds) for arc in circle), Fraction(0)) / turns


def better_circle(arcs: Sequence[Arc], size: int, ratio: float) -> tuple[tuple[Arc, ...], tuple[float, ...]]:
    """A circle that is worth more than nothing at a ratio, () when there is none; and the longest paths found."""
    scale = max([1e-300, *(abs(arc.seconds) + abs(ratio * arc.turns) for arc in arcs)])
    least = scale * _ROUNDING
    late, via = [0.0] * size, [None] * size  # type: tuple[list[float], list[Arc | None]]
    worth = [(arc.source, arc.target, arc.seconds - ratio * arc.turns, arc) for arc in arcs]
    for round_ in range(2 * size + 2):
        changed = False
        for source, target, gain, arc in worth:
            if late[source] + gain > late[target] + least:
                late[target], via[target], changed = late[source] + gain, arc, True
        if not changed:
            return (), tuple(late)
        if round_ % 4 == 3:
            found = _circle_of(via)
            if found:
                return found, tuple(late)
    return _circle_of(via), tuple(late)


def _circle_of(via: Sequence[Arc | None]) -> tuple[Arc, ...]:
    """A circle among the last improvements, () when there is none."""
    state = [0] * len(via)
    for start in range(len(via)):
        path = []
        at = start
        while state[at] == 0 and via[at] is not None:
            state[at] = 1
            path.append(at)
            at = via[at].source  # type: ignore[union-attr]
        if state[at] == 1:
            circle: list[Arc] = []
            here = at
            while not circle or here != at:
                arc = via[here]
                assert arc is not None, "every event of a circle has one before it"
                circle.append(arc)
                here = arc.source
            return tuple(reversed(circle))
        for node in [*path, at]:
            state[node] = 2
    return ()
