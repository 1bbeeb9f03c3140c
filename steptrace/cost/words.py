"""The bottleneck of a schedule in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from steptrace.cost.moments import WAITS
from steptrace.cost.period import Period
from steptrace.cost.quantity import seconds_in_words
from steptrace.diag.base import place_of

_MOST_PARTS, _MOST_ENTRIES = 6, 3
"""So many stretches of a circle are told in a row, and so many rows that read differently."""


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
    """The critical circle as a sentence: what reads the same is told once, and what is short is only counted."""
    parts = critical(period)
    if not parts:
        return "nothing takes time"
    turns = sum(arc.turns for arc in period.largest.circle) * period.cadence
    places = list(dict.fromkeys(part.where for part in parts))
    head = f"{places[0]} is the bottleneck" if len(places) == 1 else "a circle"
    return f"{head}{f' over {turns} steps' if turns > 1 else ''}{_told(_runs(parts), turns)}"


@dataclass(frozen=True, slots=True)
class _Entry:
    """Runs of a circle that read the same: how they read, of each how much is left out, and their seconds."""

    words: str
    shorter: tuple[int, ...]
    seconds: float

    def __str__(self) -> str:
        fewest, most = min(self.shorter), max(self.shorter)
        return f"{self.words}{f', and {_between(fewest, most)} shorter' if most else ''}"


def _told(runs: list[tuple[Part, ...]], turns: int) -> str:
    """What a circle consists of, behind its head."""
    found = list(_joined(runs))
    if len(found) == 1 and len(runs) == turns:
        return f"{', a step' if turns > 1 else ''}: {found[0]}"
    shown = _largest([entry.seconds for entry in found], _MOST_ENTRIES)
    told = [
        f"{_times(len(found[at].shorter), len(runs))} {found[at]} ({seconds_in_words(found[at].seconds)} in all)"
        for at in shown
    ]
    rest = len(found) - len(shown)
    return f": {'; '.join(told)}{f'; and {rest} shorter' if rest else ''}"


def _joined(runs: list[tuple[Part, ...]]) -> Iterator[_Entry]:
    """The runs, those together that read the same."""
    alike: dict[str, list[tuple[Part, ...]]] = {}
    for run in runs:
        alike.setdefault(_of_run(run), []).append(run)
    for words, those in alike.items():
        shorter = tuple(max(0, len(run) - _MOST_PARTS) for run in those)
        yield _Entry(words, shorter, sum(part.seconds for run in those for part in run))


def _largest(seconds: Sequence[float], most: int) -> list[int]:
    """Where the largest stand, in the order in which they stand."""
    return sorted(sorted(range(len(seconds)), key=lambda at: -seconds[at])[:most])


def _times(times: int, of: int) -> str:
    return f"{times} times" if times == of else f"{times} of {of} times"


def _between(fewest: int, most: int) -> str:
    return str(most) if fewest == most else f"{fewest} to {most}"


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


def _of_run(run: tuple[Part, ...]) -> str:
    """The largest parts of a run; with the seconds of each where they are of several places."""
    shown = [run[at] for at in _largest([part.seconds for part in run], _MOST_PARTS)]
    if len({part.where for part in run}) == 1:
        return " + ".join(map(_short, shown))
    return " -> ".join(map(str, shown))


def _short(part: Part) -> str:
    return f"{part.count} x {part.op}" if part.count > 1 else part.op
