"""`steptrace bench period`: periods of random schedules against runs in virtual time, and a cell as costs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import Any

from absl import flags

from ..command import Command
from ..table import aligned
from . import draws
from .period_draws import Tally, measure

_BLOCK = 50
"""Schedules that a worker takes at a time."""

TOLERANCE = 1e-9
"""The largest relative difference between a period and its run that is none."""


def _define(values: flags.FlagValues) -> None:
    draws.define(values, 500, "random schedules")


def _run(operands: list[str], values: flags.FlagValues) -> int:
    from steptrace.cost import read_costs

    from .cell import FILE, seed_cell, sensitivity

    begin = time.monotonic()
    total = measured(values.seed, values.programs, values.jobs)
    compared = time.monotonic()
    cell = seed_cell()
    cell["sensitivity"] = sensitivity(read_costs(FILE))
    seconds = {"programs": round(compared - begin, 1), "seed_cell": round(time.monotonic() - compared, 1)}
    if total.max_relative_error > TOLERANCE:
        print(f"the largest difference is that of:\n{total.worst}", file=sys.stderr)
    print(json.dumps(outcome(total, cell, values.seed, seconds)) if values.json else report(total, cell, seconds))
    return int(total.max_relative_error > TOLERANCE or total.disagreements > 0)


def measured(seed: int, programs: int, jobs: int) -> Tally:
    """Look at so many random schedules; what is found does not depend on the number of jobs."""
    return draws.spread(measure, seed, programs, jobs, block=_BLOCK, total=Tally())


def outcome(total: Tally, cell: Mapping[str, Any], seed: int, seconds: Mapping[str, float]) -> dict[str, Any]:
    """The figures, for scripts."""
    return {
        "max_relative_error": total.max_relative_error,
        "deadlock_disagreements": total.disagreements,
        "programs": total.programs,
        "deadlocks": total.deadlocks,
        "undecided": total.undecided,
        "unsettled": total.unsettled,
        "strata": total.by_stratum,
        "seed": seed,
        "seconds": dict(seconds),
        "seed_cell": dict(cell),
    }


def report(total: Tally, cell: Mapping[str, Any], seconds: Mapping[str, float]) -> str:
    """The figures, to be read."""
    parts = [
        f"{total.programs:,} schedules in {seconds['programs']} s: the largest relative difference between period and "
        f"run is {total.max_relative_error:.1e}; {total.deadlocks:,} lock up, and {total.disagreements:,} verdicts "
        f"differ; {total.unsettled:,} runs did not settle; {total.undecided:,} have no period, since lanes that send "
        "work to a device do not keep pace",
        aligned(_figures(cell)),
        "left open: " + "; ".join(cell["figures"]["under_determined"]),
        f"the search found `{cell['autoschedule_pipeline']}`, {cell['autoschedule_over_bound']:.4f} times the bound, "
        f"and stopped: {cell['autoschedule_stopped']}",
    ]
    if "sensitivity" in cell:
        rows, idle = _changed(cell)
        parts.append(f"with one cost changed by 20 %, in seconds and units\n{aligned(rows, indent=2)}")
        parts.append(f"no figure changes by as much as 0.005 with: {', '.join(idle)}")
    return "\n\n".join(parts)


def _figures(cell: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Each figure of the cell: what it is to the costs, what is claimed, and what follows."""
    rows: list[tuple[str, ...]] = [("figure", "is", "claimed", "from the costs")]
    for kind in ("input", "outcome", "held_out"):
        for name, (given, found) in cell["figures"][kind].items():
            said = f"{given[0]} to {given[1]}" if isinstance(given, list) else f"{given}"
            rows.append((name, kind.replace("_", " "), said, f"{found:.2f}"))
    outcomes = ("pipelined_s", "staged_after_s", "bound_s", "autoschedule_s")
    rows += [(key, "outcome", "", f"{cell[key]:.2f}") for key in outcomes]
    return rows


def _changed(cell: Mapping[str, Any]) -> tuple[list[tuple[str, ...]], list[str]]:
    """The figures as they are, and with each cost changed on which one depends; and the costs on which none does."""
    changed = cell["sensitivity"]
    keys = list(next(iter(changed.values())))
    plain = {**{key: cell[key] for key in keys if key in cell}, **{f"gap_{k}": v for k, v in cell["gap_units"].items()}}
    moved = {name: found for name, found in changed.items() if any(abs(found[k] - plain[k]) >= 0.005 for k in keys)}
    rows = [(name, *(f"{found[key]:.2f}" for key in keys)) for name, found in {"as assumed": plain, **moved}.items()]
    costs = list(dict.fromkeys(name.partition(" ")[0] for name in changed))
    idle = [cost for cost in costs if not any(name.startswith(f"{cost} ") for name in moved)]
    return [("", *keys), *rows], idle


COMMAND = Command(
    name="bench period",
    operands="",
    summary="Periods of random schedules against runs in virtual time, and a cell of which figures are known.",
    examples=(
        ("bench period", "five hundred schedules, and the cell"),
        ("bench period --seed=4 --programs=10000 --json", "for scripts; the same figures each time"),
    ),
    run=_run,
    define=_define,
    details="The period comes from the graph of a schedule's events, without a clock; the run walks through the same "
    "plan with one. It exits with 1 when they differ, or do not agree on which schedules lock up.",
)
