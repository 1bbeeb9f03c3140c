"""`steptrace bench crashes`: SIGKILL at every border between ops of a step, under every built-in schedule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from absl import flags

from ..command import Command
from ..table import aligned
from . import matrix

if TYPE_CHECKING:
    from steptrace.testing.crash_matrix import CrashRow

QUICK = ("async-everything, late saves", "program order, late saves", "take-ahead{depth=2}")
"""The schedules of a quick look."""


def _define(values: flags.FlagValues) -> None:
    matrix.define(values, "three schedules, one step, behind each op only", jobs=2)


def _run(_: list[str], values: flags.FlagValues) -> int:
    from steptrace.testing.crash_matrix import crash_rows
    from steptrace.testing.durable_runs import ARMS

    return matrix.run(values, crash_rows, ARMS, QUICK, report)


def report(rows: Sequence[CrashRow], seconds: float) -> str:
    """A table by schedule, and what differs."""
    arms = list(dict.fromkeys((row.arm, row.target) for row in rows))
    every = Counter((row.arm, row.target) for row in rows)
    good = Counter((row.arm, row.target) for row in rows if row.as_declared)
    others = {arm: sorted({row.other for row in rows if (row.arm, row.target) == arm}) for arm in arms}
    body = [(*arm, f"{every[arm]}", f"{good[arm]}", ", ".join(others[arm])) for arm in arms]
    table = aligned([("killed under", "target", "borders", "same", "resumed under it, and under one of"), *body])
    return "\n\n".join([table, *matrix.summary(rows, seconds, _place)])


def _place(row: CrashRow) -> str:
    micro = "" if row.micro is None else f", micro-batch {row.micro}"
    return f"{row.killed} killed {'behind' if row.behind else 'before'} {row.op} of step {row.step}{micro}"


COMMAND = Command(
    name="bench crashes",
    operands="",
    summary="Kills runs at every border between ops of a step (kill -9) and resumes them: nothing lost, nothing twice.",
    examples=(
        ("bench crashes", "some minutes"),
        ("bench crashes --quick", "three schedules, one step"),
        ("bench crashes --only=take-ahead --json", "for scripts"),
    ),
    run=_run,
    define=_define,
    details="A run is killed before and behind each op of two steps, one of which saves a checkpoint, and in each "
    "round of their loops, under every built-in schedule. With --target=process it is killed behind each op of a step, "
    "and so is each of its workers. The run is then resumed under that schedule and under another one. Both train the "
    "groups, and end with the parameters, the calls and the log, of the run that nobody killed. Exits with 1 when one "
    "does not.",
)
