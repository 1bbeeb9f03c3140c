"""Which runs are tried: windows of steps, vectors of micro-batch counts, flags, and where ``every n`` falls.

Inside a lane the order of two instances of steps k < k' differs from that of the source only if k' - k <= S, the
largest shift, and it depends on nothing but the counts and flags of these steps. So windows of S + 2 steps (a step on
the border included) with all counts and flags show every pair that is out of order. A ring of waits between lanes
visits each lane, device and link at most once, so it shows within max(D, L * S) + 2 steps, D being the largest distance
of an edge and L the number of lanes, devices and links.

Windows grow with S, and their number with 4 to the power of S. What does not fit into the budget is sampled evenly, and
runs that would be longer than ``LONGEST`` are cut short; the report says so.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from steptrace.check.validation.instances import FlagKey, Setting, free_flags, made_flags, makers_of_flags
from steptrace.check.validation.sides import Pair
from steptrace.ir import Every, Not, Predicate
from steptrace.ir.predicate import And, Or

COUNTS = (0, 1, 2, 3)
"""Micro-batch counts that are tried for each step: none, one, and enough for a peeled one and two shifted ones."""

LONGEST_PERIOD = 240
"""The largest common period of conditions ``every n`` whose phases are all looked at."""


LONGEST = 160
"""The largest number of steps of a run."""

_USUAL = 5
"""Steps of a window for which a budget is meant; longer windows, whose runs cost more, get fewer runs."""


@dataclass(frozen=True, slots=True)
class Budget:
    """How many runs a validation may try; what it leaves out is said in its report.

    Attributes:
      runs: the largest number of runs in the window.
      flags: the largest number of settings of the flags for one vector of counts; beyond it, all settings of each two
        neighbouring steps, the other flags all false and all true.
    """

    runs: int = 2500
    flags: int = 64

    def runs_of(self, steps: int) -> int:
        """The largest number of runs of a window of some steps; a run costs about the square of its steps."""
        return self.runs if steps <= _USUAL else max(24, self.runs * _USUAL**2 // steps**2)


@dataclass(frozen=True, slots=True)
class Window:
    """The runs to be tried.

    Attributes:
      ahead: the largest number of steps that an op runs ahead (S).
      distance: the largest distance of an edge (D).
      lanes: lanes, devices and links (L).
      short: the number of steps up to which all vectors are tried.
      bound: the number of steps by which a ring of waits shows.
      long: the number of steps of the longest runs.
      runs: the runs.
      whole: whether all flags, and all vectors of counts up to ``short`` steps, were taken.
      tried: in words, which vectors and flags were taken.
    """

    ahead: int
    distance: int
    lanes: int
    short: int
    bound: int
    long: int
    runs: tuple[Setting, ...]
    whole: bool
    tried: str


def window_of(pair: Pair, budget: Budget) -> Window:
    """The runs that a schedule is tried on; see the module."""
    ahead = pair.schedule.ahead
    devices = {site.kind.device for site in pair.schedule.sites if site.asynchronous}
    lanes = len({site.op.lane for site in pair.schedule.sites}) + len(devices)
    distance = _distance(pair)
    short, bound = ahead + 2, max(distance, lanes * ahead) + 2
    most, long = budget.runs_of(short), min(bound, LONGEST)
    counts = tuple(count for count in COUNTS if count or pair.source.program.contract.empty == "skip")
    runs, deep = _short_runs(pair, counts, min(short, LONGEST), most, budget)
    tried = f"all vectors of {counts[0]} to {counts[-1]} micro-batches for up to {deep} steps"
    whole = deep == short and long == bound
    if deep < short:
        tried += f", some for up to {min(short, LONGEST)}"
    flags = len(free_flags(pair, (counts[-1],) * deep))
    if 2**flags > budget.flags:
        whole, tried = False, tried + ", all flags of each two neighbouring steps"
    else:
        tried += f", all settings of their {flags} flags" if flags else ", no flags"
    if deep > _CROSSED and len(phases(pair, deep)) > 1:
        tried += ", with `every n` in all places for up to 2 steps and in turn for more"
    if len(runs) > most:
        stride = _stride(len(runs), most)
        runs, whole = runs[::stride], False
        tried += f"; of these one in {stride}"
    runs += [setting for vector in _long(counts, long) for setting in _extremes(pair, vector)]
    return Window(ahead, distance, lanes, short, bound, long, tuple(runs), whole, tried)


def _short_runs(
    pair: Pair, counts: tuple[int, ...], short: int, most: int, budget: Budget
) -> tuple[list[Setting], int]:
    """Runs of up to ``short`` steps, and the number of steps up to which all vectors of counts are among them."""
    runs: list[Setting] = []
    deep = 0
    for steps in range(short + 1):
        vectors = len(counts) ** steps
        if steps > 2 and vectors > max(most, len(counts) ** _USUAL):
            runs += [
                setting for at in range(_SAMPLES) for setting in _settings(pair, _sample(counts, steps, at), budget)
            ]
        else:
            deep = steps
            for vector in itertools.product(counts, repeat=steps):
                runs += _settings(pair, vector, budget)
    return runs, deep


_SAMPLES = 12
"""How many vectors are taken of a length of which there are too many."""


def _sample(counts: tuple[int, ...], steps: int, number: int) -> tuple[int, ...]:
    """The ``number``-th sampled vector of a length: digits of multiples of the golden ratio, which fill evenly."""
    found, fraction = [], (number + 1) * 0.6180339887498949 % 1
    for _ in range(steps):
        fraction *= len(counts)
        found.append(counts[int(fraction)])
        fraction = (fraction + 0.6180339887498949) % 1
    return tuple(found)


def _stride(runs: int, most: int) -> int:
    """The step at which runs are picked: no multiple of 2 or 3, or the same flags would be picked each time."""
    stride = math.ceil(runs / most)
    while stride % 2 == 0 or stride % 3 == 0:
        stride += 1
    return stride


def _distance(pair: Pair) -> int:
    """The largest distance of an edge: differences of indices of one resource, 1 for what is not indexed."""
    indices: dict[str, list[int]] = {}
    for side in (pair.source, pair.schedule):
        for site in side.sites:
            for touch in site.touches:
                if touch.step is not None:
                    indices.setdefault(touch.leaf, []).append(touch.step)
    return max([1, *(max(steps) - min(steps) for steps in indices.values())])


def _settings(pair: Pair, counts: tuple[int, ...], budget: Budget) -> Iterator[Setting]:
    makers = makers_of_flags(pair, counts)
    falls = tuple(phases(pair, len(counts)))
    valuations = _valuations(tuple(makers), budget.flags)
    made = dict.fromkeys(made_flags(makers, Setting(counts, true)).flags for true in valuations)
    pairs = _in_turn(tuple(made), falls, sum(counts)) if len(counts) > _CROSSED else itertools.product(made, falls)
    yield from dict.fromkeys(made_flags(makers, Setting(counts, true, fall)) for true, fall in pairs)


_CROSSED = 2
"""The longest windows in which each setting of the flags meets each place where ``every n`` may fall; in longer ones
each setting meets one of them and each of them one setting, in turn."""


def _in_turn(
    flags: tuple[frozenset[FlagKey], ...], falls: tuple[int, ...], first: int
) -> Iterator[tuple[frozenset[FlagKey], int]]:
    for at in range(max(len(flags), len(falls))):
        yield flags[at % len(flags)], falls[(first + at) % len(falls)]


def _valuations(flags: tuple[FlagKey, ...], most: int) -> Iterator[frozenset[FlagKey]]:
    if 2 ** len(flags) <= most:
        for bits in range(2 ** len(flags)):
            yield frozenset(flag for at, flag in enumerate(flags) if bits >> at & 1)
        return
    seen: set[frozenset[FlagKey]] = set()
    steps = sorted({flag[3] for flag in flags})
    for first in steps:
        near = tuple(flag for flag in flags if flag[3] in (first, first + 1))[: max(1, most.bit_length())]
        for rest in (frozenset[FlagKey](), frozenset(flags) - frozenset(near)):
            for bits in range(2 ** len(near)):
                true = rest | {flag for at, flag in enumerate(near) if bits >> at & 1}
                if true not in seen:
                    seen.add(true)
                    yield true


def _long(counts: tuple[int, ...], steps: int) -> Iterator[tuple[int, ...]]:
    """Vectors of long runs: each count throughout, and counts that rise and fall."""
    for count in counts:
        yield (count,) * steps
    yield tuple(counts[at % len(counts)] for at in range(steps))
    yield tuple(counts[-1 - at % len(counts)] for at in range(steps))


def _extremes(pair: Pair, counts: tuple[int, ...]) -> Iterator[Setting]:
    """All flags false, all true, and true in every other step."""
    flags = free_flags(pair, counts)
    odd = frozenset(flag for flag in flags if flag[3] % 2)
    for true in dict.fromkeys((frozenset[FlagKey](), frozenset(flags), odd)):
        yield Setting(counts, true)


def phases(pair: Pair, steps: int) -> tuple[int, ...]:
    """Where a window of some steps may begin, one place for each pattern in which its ``every n`` are true."""
    periods = {period for side in (pair.source, pair.schedule) for s in side.sites for period in _periods(s.op.when)}
    common = min(math.lcm(*periods), LONGEST_PERIOD) if periods else 1
    found: dict[tuple[bool, ...], int] = {}
    for phase in range(common):
        pattern = tuple((phase + k + 1) % period == 0 for period in sorted(periods) for k in range(steps))
        found.setdefault(pattern, phase)
    return tuple(found.values())


def _periods(predicate: Predicate) -> Iterator[int]:
    match predicate:
        case Every(period):
            yield period
        case Not(term):
            yield from _periods(term)
        case And(terms) | Or(terms):
            for term in terms:
                yield from _periods(term)
        case _:
            return
