"""`steptrace bench faults`: a fault in every op that may fail, under every built-in schedule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from absl import flags

from ..command import Command
from ..table import aligned
from . import matrix

if TYPE_CHECKING:
    from steptrace.testing.fault_matrix import Row

QUICK = ("program order", "async-everything, late saves")
"""The schedules of a quick look."""


def _define(values: flags.FlagValues) -> None:
    matrix.define(values, "two schedules, one instance of each op", jobs=4)


def _run(_: list[str], values: flags.FlagValues) -> int:
    from steptrace.testing.durable_runs import FAULTY
    from steptrace.testing.fault_matrix import fault_rows

    return matrix.run(values, fault_rows, FAULTY, QUICK, report)


def report(rows: Sequence[Row], seconds: float) -> str:
    """A table for each target, by kind of op and of fault, and what is not as declared."""
    targets = list(dict.fromkeys(row.target for row in rows))
    tables = [f"{target}\n{_table([row for row in rows if row.target == target])}" for target in targets]
    return "\n\n".join([*tables, *matrix.summary(rows, seconds, _place)])


def _place(row: Row) -> str:
    return f"{row.fault} at {row.op} of step {row.step}"


def _table(rows: Sequence[Row]) -> str:
    """Counts by kind of op and of fault: how many of how many ended as declared, and how that is."""
    from steptrace.testing.faults import KINDS

    there = {row.fault for row in rows}
    faults = [fault for fault in KINDS if fault in there]
    kinds = list(dict.fromkeys(row.kind for row in rows))
    good = Counter((row.kind, row.fault) for row in rows if row.as_declared)
    every = Counter((row.kind, row.fault) for row in rows)

    def shown(kind: str, fault: str) -> str:
        count, most = good[kind, fault], every[kind, fault]
        ends = sorted({row.declared for row in rows if (row.kind, row.fault) == (kind, fault)})
        return f"{count}/{most} {' or '.join(ends)}" if most else "-"

    return aligned([("op", *faults), *((kind, *(shown(kind, fault) for fault in faults)) for kind in kinds)])


COMMAND = Command(
    name="bench faults",
    operands="",
    summary="A fault in every op that may fail, of every kind, under every built-in schedule: does it end as declared?",
    examples=(
        ("bench faults", "some minutes"),
        ("bench faults --quick", "two schedules, one instance of each op"),
        ("bench faults --only=async-everything --json", "for scripts"),
    ),
    run=_run,
    define=_define,
    details="Each cell is a run in a process of its own: an op raises, its call to a part is lost before or after it "
    "was carried out, the process is killed, the op hangs, or is slow. The table counts cells that ended as declared, "
    "and says how that is. Whatever ended a run, it is resumed, and has trained the same groups and ended with the "
    "same parameters as the run that was left alone. With --target=process trainer, rollout and reference have "
    "processes of their own: their methods raise there, and these are killed, stopped and slow, their messages "
    "dropped; the ops that stay in the driver fail there. Exits with 1 when a cell does not end as declared.",
)
