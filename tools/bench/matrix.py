"""What `bench faults` and `bench crashes` have in common: their options, which cells they run, how these are told."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from absl import flags

if TYPE_CHECKING:
    from steptrace.testing.durable_runs import Arm
    from steptrace.testing.matrix import Outcome

R = TypeVar("R", bound="Outcome")


class Rows(Protocol[R]):
    """Runs the cells of a matrix; see ``fault_rows``."""

    def __call__(self, arms: Sequence[Arm], *, quick: bool, at_once: int, targets: Sequence[str]) -> list[R]:
        """Their rows."""


def define(values: flags.FlagValues, quick: str, jobs: int) -> None:
    """The options.

    Args:
      values: where they are defined.
      quick: what is left of the matrix by ``--quick``.
      jobs: how many processes run at a time where it is not told.
    """
    flags.DEFINE_bool("quick", False, quick, flag_values=values)
    flags.DEFINE_string("only", "", "only schedules whose name holds this", flag_values=values)
    flags.DEFINE_enum("target", "both", ["inline", "process", "both"], "where the parts are", flag_values=values)
    flags.DEFINE_integer("jobs", jobs, "processes at a time; many of them wait", 1, flag_values=values)
    flags.DEFINE_bool("json", False, "end with one JSON object", flag_values=values)


def run(
    values: flags.FlagValues,
    rows_of: Rows[R],
    arms: Sequence[Arm],
    quick: Sequence[str],
    report: Callable[[Sequence[R], float], str],
) -> int:
    """Run a matrix and print what came of it; gives the exit code.

    Args:
      values: the options.
      rows_of: runs the matrix.
      arms: its schedules.
      quick: the names of those of a quick look.
      report: the outcome in words.
    """
    from steptrace.testing.matrix import TARGETS

    print(f"some minutes, {values.jobs} runs at a time; the table comes at the end", file=sys.stderr)
    begin = time.monotonic()
    chosen = [arm for arm in arms if values.only in arm.name and (not values.quick or arm.name in quick)]
    targets = TARGETS if values.target == "both" else (values.target,)
    rows = rows_of(chosen, quick=values.quick, at_once=values.jobs, targets=targets)
    seconds = time.monotonic() - begin
    print(report(rows, seconds))
    if values.json:
        print(json.dumps(figures(rows, seconds)))
    return 0 if all(row.as_declared for row in rows) else 1


def figures(rows: Sequence[Outcome], seconds: float) -> dict[str, object]:
    """The outcome as it is written."""
    return {
        "cells": len(rows),
        "as_declared": sum(row.as_declared for row in rows),
        "hangs": sum(row.hung for row in rows),
        "leaks": sum(len(row.left) for row in rows),
        "seconds": round(seconds, 1),
        "rows": [row.facts() for row in rows],
    }


def summary(rows: Sequence[R], seconds: float, place: Callable[[R], str]) -> list[str]:
    """The outcome in one line, and a line for each row that is not as declared.

    Args:
      rows: the rows.
      seconds: how long they took.
      place: where a row was, in words.
    """
    said = (
        "{cells} cells, {as_declared} as declared, {hangs} hang, {leaks} left something behind, {seconds:.0f} seconds"
    )
    wrong = [f"{row.arm}, {row.target}: {place(row)}: {row.why}" for row in rows if row.why]
    return [f"{len({row.arm for row in rows})} schedules, {said.format(**figures(rows, seconds))}", *wrong]
