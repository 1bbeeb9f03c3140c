"""A few runs in which what stays may come too early: quick enough to ask after every pass.

Which op waits for which failure hardly depends on how long a run is, so runs of a step or two more than ops run ahead,
with flags all true or all false, show nearly all of it. What they do not show a whole validation does.
"""

from __future__ import annotations

from collections.abc import Iterator

from steptrace.check.validation.failure import check_failures, suppressed
from steptrace.check.validation.finding import Finding
from steptrace.check.validation.instances import Setting, free_flags
from steptrace.check.validation.runs import Stuck, line_of, run_of
from steptrace.check.validation.sides import Pair, pair_of
from steptrace.check.validation.windows import phases
from steptrace.diag.validation import NotASourceError
from steptrace.ir import Program

_COUNTS = ((2,), (1, 3, 2), (3, 1, 2), (0, 2, 3))
"""Micro-batches of each step, over and over; no step without any where the contract has none."""

_MOST_STEPS = 5


def stays_too_early(program: Program, source: Program) -> Finding | None:
    """The first op found whose effects stay and that may have run when one it waits for in the source fails.

    Args:
      program: the schedule.
      source: the program it was derived from; with a source that is a schedule itself nothing can be said.
    """
    try:
        pair = pair_of(program, source)
    except NotASourceError:
        return None
    return next(filter(None, (_in_run(pair, setting) for setting in _settings(pair))), None)


def _settings(pair: Pair) -> Iterator[Setting]:
    steps = min(pair.schedule.ahead + 2, _MOST_STEPS)
    for counts in _COUNTS:
        if 0 in counts and pair.source.program.contract.empty != "skip":
            continue
        vector = counts if len(counts) == 1 else tuple(counts[at % len(counts)] for at in range(steps))
        flags = frozenset(free_flags(pair, vector))
        for phase in phases(pair, len(vector)):
            for true in dict.fromkeys((frozenset(), flags)):
                yield Setting(vector, true, phase)


def _in_run(pair: Pair, setting: Setting) -> Finding | None:
    source, schedule = run_of(pair, pair.source, setting), run_of(pair, pair.schedule, setting)
    plain, order = line_of(source), line_of(schedule)
    if isinstance(plain, Stuck) or isinstance(order, Stuck):
        return None
    return check_failures(suppressed(source, plain), schedule, order)
