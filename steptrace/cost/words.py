"""The bottleneck of a schedule in words."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from steptrace.cost.moments import WAITS
from steptrace.cost.period import Period
from steptrace.cost.quantity import seconds_in_words
from steptrace.diag.base import place_of


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of the critical circle.

    Attributes:
      op: the op whose time it is.
      where: the lane, device or link that is busy.
      count: how many instances of it in a row.
      seconds: how long they take, all of them.
      line: the user's line, "" where there is none.
    """

    op: str
    where: str
    count: int
    seconds: float
    line: str

    def __str__(self) -> str:
        return f"{_short(self)} ({seconds_in_words(self.seconds)} on {self.where})"


def critical(period: Period) -> tuple[Part, ...]:
    """The critical circle: what takes time along it, one after the other."""
    names = period.graph.names
    lines = {op.id: place_of(op.loc) for op in period.plan.program.ops() if op.loc is not None}
    parts: list[Part] = []
    for arc in period.largest.circle:
        name = names[arc.target][0]
        if not arc.seconds:
            continue
        owner = names[arc.source][0] if name.op != names[arc.source][0].op and name.part >= WAITS else name
        if parts and (parts[-1].op, parts[-1].where) == (owner.op, owner.where):
            last = parts[-1]
            parts[-1] = Part(last.op, last.where, last.count + 1, last.seconds + arc.seconds, last.line)
        else:
            parts.append(Part(owner.op, owner.where, 1, arc.seconds, lines.get(owner.op, "")))
    if len(parts) > 1 and (parts[0].op, parts[0].where) == (parts[-1].op, parts[-1].where):
        first, last = parts[0], parts.pop()
        parts[0] = Part(first.op, first.where, first.count + last.count, first.seconds + last.seconds, first.line)
    return tuple(parts)


def bottleneck(period: Period) -> str:
    """The critical circle as a sentence."""
    parts = critical(period)
    if not parts:
        return "nothing takes time"
    turns = sum(arc.turns for arc in period.largest.circle) * period.cadence
    runs = _runs(parts)
    kinds = list(dict.fromkeys(runs))
    each = "; ".join(_of_run(run, runs.count(run), len(runs), len(kinds)) for run in kinds)
    places = list(dict.fromkeys(part.where for part in parts))
    head = f"{places[0]} is the bottleneck" if len(places) == 1 else "a circle"
    return f"{head}{f' over {turns} steps' if turns > 1 else ''}: {each}"


def _runs(parts: tuple[Part, ...]) -> list[tuple[Part, ...]]:
    """A circle, cut where it comes back to what it begins with: once a step, where it is on a lane or a device."""
    counts = Counter((part.op, part.where) for part in parts)
    most = max(counts.values())
    first = next(at for at, part in enumerate(parts) if counts[part.op, part.where] == most)
    turned = (*parts[first:], *parts[:first])
    runs: list[list[Part]] = []
    for part in turned:
        if not runs or (part.op, part.where) == (turned[0].op, turned[0].where):
            runs.append([])
        runs[-1].append(part)
    return [tuple(run) for run in runs]


def _of_run(run: tuple[Part, ...], times: int, of: int, kinds: int) -> str:
    words = " + ".join(_short(part) for part in run) if len({part.where for part in run}) == 1 else ""
    words = words or " -> ".join(map(str, run))
    return words if kinds == 1 else f"{times} of {of} times {words}"


def _short(part: Part) -> str:
    return f"{part.count} x {part.op}" if part.count > 1 else part.op
