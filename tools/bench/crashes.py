"""`steptrace bench crashes`: SIGKILL at every border between ops of a step, under every built-in schedule."""

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
    from steptrace.testing.crash_matrix import CrashRow


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_bool("quick", False, "three schedules, one step, behind each op only", flag_values=values)
    flags.DEFINE_string("only", "", "only schedules whose name holds this", flag_values=values)
    flags.DEFINE_enum("target", "both", ["inline", "process", "both"], "where the parts are", flag_values=values)
    flags.DEFINE_integer("jobs", 2, "processes at a time", 1, flag_values=values)
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


QUICK = ("async-everything, late saves", "program order, late saves", "take-ahead{depth=2}")
"""The schedules of a quick look."""


def measure(only: str = "", jobs: int = 2, *, quick: bool = False, target: str = "both") -> list[CrashRow]:
    """The cells of the matrix, in the order of the schedules and their ops.

    Args:
      only: part of the names of the schedules to take, "" for all.
      jobs: processes at a time.
      quick: three schedules, one step, behind each op only.
      target: where the parts are: "inline", "process" or "both".
    """
    from steptrace.testing.crash_matrix import crash_rows
    from steptrace.testing.durable_runs import ARMS
    from steptrace.testing.fault_matrix import TARGETS

    arms = [arm for arm in ARMS if only in arm.name and (not quick or arm.name in QUICK)]
    targets = TARGETS if target == "both" else (target,)
    return crash_rows(arms, quick=quick, at_once=jobs, targets=targets)


def figures(rows: Sequence[CrashRow], seconds: float) -> dict[str, object]:
    """The outcome as it is written."""
    return {
        "cells": len(rows),
        "as_declared": sum(row.as_declared for row in rows),
        "hangs": sum(row.hung for row in rows),
        "leaks": sum(len(row.left) for row in rows),
        "seconds": round(seconds, 1),
        "rows": [row.facts() for row in rows],
    }


def report(rows: Sequence[CrashRow], seconds: float) -> str:
    """A table by schedule, and what differs."""
    arms = list(dict.fromkeys((row.arm, row.target) for row in rows))
    every = Counter((row.arm, row.target) for row in rows)
    good = Counter((row.arm, row.target) for row in rows if row.as_declared)
    others = {arm: sorted({row.other for row in rows if (row.arm, row.target) == arm}) for arm in arms}
    body = [(*arm, f"{every[arm]}", f"{good[arm]}", ", ".join(others[arm])) for arm in arms]
    table = aligned([("killed under", "target", "borders", "same", "resumed under it, and under one of"), *body])
    facts = figures(rows, seconds)
    said = "{cells} cells, {as_declared} as declared, {hangs} hang, {leaks} left something behind".format(**facts)
    wrong = [f"{row.arm}: {_place(row)}: {row.why}" for row in rows if row.why]
    return "\n\n".join([table, f"{said}, {seconds:.0f} seconds", *wrong])


def _place(row: CrashRow) -> str:
    micro = "" if row.micro is None else f", micro-batch {row.micro}"
    return f"killed {'behind' if row.behind else 'before'} {row.op} of step {row.step}{micro}"


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
    "round of their loops, under every built-in schedule. With --target=process it is the driver that is killed, or "
    "one of the workers. The run is then resumed under that schedule and under another one. Both train the groups, and "
    "end with the parameters, the calls and the log, of the run that nobody killed. Exits with 1 when one does not.",
)
