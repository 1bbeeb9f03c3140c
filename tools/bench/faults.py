"""`steptrace bench faults`: a fault in every op that may fail, under every built-in schedule."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from absl import flags

from ..command import Command
from ..table import aligned

if TYPE_CHECKING:
    from steptrace.testing.fault_matrix import Row


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_bool("quick", False, "two schedules, one instance of each op", flag_values=values)
    flags.DEFINE_string("only", "", "only schedules whose name holds this", flag_values=values)
    flags.DEFINE_enum("target", "both", ["inline", "process", "both"], "where the parts are", flag_values=values)
    flags.DEFINE_integer("jobs", 4, "processes at a time; many of them wait", 1, flag_values=values)
    flags.DEFINE_bool("json", False, "end with one JSON object", flag_values=values)


def _run(_: list[str], values: flags.FlagValues) -> int:
    print(f"some minutes, {values.jobs} runs at a time; the table comes at the end", file=sys.stderr)
    begin = time.monotonic()
    rows = measure(values.only, values.jobs, quick=values.quick, target=values.target)
    seconds = time.monotonic() - begin
    print(report(rows, seconds))
    if values.json:
        print(json.dumps(figures(rows, seconds)))
    return 0 if all(row.as_declared for row in rows) else 1


QUICK = ("program order", "async-everything, late saves")
"""The schedules of a quick look."""


def measure(only: str = "", jobs: int = 4, *, quick: bool = False, target: str = "both") -> list[Row]:
    """The cells of the matrix, in the order of the schedules and their ops.

    Args:
      only: part of the names of the schedules to take, "" for all.
      jobs: processes at a time.
      quick: two schedules, one instance of each op.
      target: where the parts are: "inline", "process" or "both".
    """
    from steptrace.testing.durable_runs import FAULTY
    from steptrace.testing.fault_matrix import TARGETS, fault_rows

    arms = [arm for arm in FAULTY if only in arm.name and (not quick or arm.name in QUICK)]
    targets = TARGETS if target == "both" else (target,)
    return fault_rows(arms, quick=quick, at_once=jobs, targets=targets)


def figures(rows: Sequence[Row], seconds: float) -> dict[str, object]:
    """The outcome as it is written."""
    return {
        "cells": len(rows),
        "as_declared": sum(row.as_declared for row in rows),
        "hangs": sum(row.hung for row in rows),
        "leaks": sum(len(row.left) for row in rows),
        "seconds": round(seconds, 1),
        "rows": [row.facts() for row in rows],
    }


def report(rows: Sequence[Row], seconds: float) -> str:
    """A table for each target, by kind of op and of fault, and what is not as declared."""
    facts = figures(rows, seconds)
    targets = list(dict.fromkeys(row.target for row in rows))
    tables = [f"{target}\n{_table([row for row in rows if row.target == target])}" for target in targets]
    arms = len({row.arm for row in rows})
    said = "{cells} cells, {as_declared} as declared, {hangs} hang, {leaks} left something behind".format(**facts)
    wrong = [
        f"{row.arm}, {row.target}: {row.fault} at {row.op} of step {row.step}: {row.why}" for row in rows if row.why
    ]
    return "\n\n".join([*tables, f"{arms} schedules, {said}, {seconds:.0f} seconds", *wrong])


def _place(row: Row) -> str:
    return f"{row.arm}, {row.target}: {row.fault} at {row.op} of step {row.step}"


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
    "processes of their own, and it is these that are killed, stopped and slow, and whose messages are dropped. Exits "
    "with 1 when a cell does not end as declared.",
)
