"""A cell of which few figures are known, as costs: what follows from them, and how much it depends on what is assumed.

`cell_128_chips.toml` has the costs, each with where it comes from. It shows that the figures go together, not that they
are so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from steptrace.cost import Costs
    from steptrace.ir import Program

FILE = Path(__file__).with_name("cell_128_chips.toml")
"""The costs."""

PROGRAM = "grpo{staleness=1,save_every=1000000}"
"""The step: GRPO on rollouts of the step before last, without checkpoints, of which no figure speaks."""

SCHEDULES: Mapping[str, str] = MappingProxyType(
    {
        "base_s": "",
        "pipelined_s": "pipelined-boundary-unstaged",
        "staged_after_s": "pipelined-boundary-staged-after",
        "staged_before_s": "pipelined-boundary",
    }
)
"""The pipeline of each schedule, by the key of its period."""

CLAIMED: Mapping[str, Any] = MappingProxyType(
    {"base_s": 106.24, "staged_before_s": 98.58, "gap_before": 6.7, "gap_after": 15.3, "device_wait": (5.4, 5.5)}
)
"""The figures of the cell: seconds a step; and in units, measured with doubles of trainers."""

LEDGER: Mapping[str, float] = MappingProxyType(
    {"start": 130.8, "recipe keys and a compiler flag": -8.80, "log-prob head": -14.41, "two precision flags": -1.35}
)
"""Where the seconds of the base cell come from, by the changes before its boundary was staged; none is a schedule."""

CHANGE = 0.2
"""By which each cost is changed, to see what depends on it."""


def seed_cell(*, search: bool = True) -> dict[str, Any]:
    """The periods of the cell's schedules, the bound, what a search finds, and the gaps in units.

    Args:
      search: whether to search for the best schedule; without, its keys are None.
    """
    from steptrace.cost import bound_of, read_costs

    costs = read_costs(FILE)
    program, micro_batches = source(), costs.micro_batches or 1
    durations = costs.covering(program)
    bound = bound_of(program, durations, micro_batches=micro_batches)
    found: dict[str, Any] = {**periods(costs), "autoschedule_s": None, "bound_s": bound.seconds}
    found["autoschedule_over_bound"] = None
    if search:
        from steptrace.motion import Schedule
        from steptrace.passes.search import search as search_for

        best = search_for(Schedule.of(program), durations, micro_batches=micro_batches)
        assert best is not None, "without a limit to memory the program itself is within it"
        found["autoschedule_s"] = best.judged.period.seconds
        found["autoschedule_over_bound"] = best.judged.period.seconds / bound.seconds
        found["autoschedule_pipeline"], found["autoschedule_stopped"] = best.pipeline, best.why
    found["gap_units"] = gap_units(costs)
    found["figures"] = figures(costs, found)
    return found


def periods(costs: Costs) -> dict[str, float]:
    """The period of each schedule of the cell, in seconds."""
    from steptrace.cost import judged
    from steptrace.passes import run_pipeline

    program = source()
    return {
        key: judged(
            run_pipeline(program, pipeline).schedule, costs.durations(), micro_batches=costs.micro_batches or 1
        ).period.seconds
        for key, pipeline in SCHEDULES.items()
    }


def unit_s() -> float:
    """Seconds of a unit, if what staging saves is the difference of the two gaps: an assumption."""
    saved: float = CLAIMED["base_s"] - CLAIMED["staged_before_s"]
    return saved / float(CLAIMED["gap_after"] - CLAIMED["gap_before"])


def gap_units(costs: Costs) -> dict[str, float]:
    """The gap at the boundary, work in it included, under replay of the first micro-batch; and how long it is busy.

    In units, of which `unit_s` says how long one is. Only the gap with the stage in front went into the costs.
    """
    from steptrace.lang.reference import resolve
    from steptrace.lower import lower
    from steptrace.passes import run_pipeline
    from steptrace.simulate import simulate, steady
    from steptrace.testing import ReplayTrainer

    found: dict[str, float] = {}
    for key, pipeline in (("staged_before", "pipelined-boundary"), ("staged_after", "pipelined-boundary-staged-after")):
        schedule = run_pipeline(resolve(PROGRAM), pipeline).schedule
        plan = lower(schedule.program, source=schedule.source)
        run = simulate(
            plan, costs.durations(), micro_batches=costs.micro_batches or 1, steps=8, trainer=ReplayTrainer("first")
        )
        found[key] = steady(run.boundary_s()) / unit_s()
        if key == "staged_before":
            found["device_wait"] = steady(run.device_waits) / unit_s()
    return found


def figures(costs: Costs, found: Mapping[str, Any]) -> dict[str, Any]:
    """Each claimed figure with what follows from the costs, and whether it was put in, follows, or is left open."""
    units = found["gap_units"]
    return {
        "input": {
            "base_s": [CLAIMED["base_s"], found["base_s"]],
            "staged_before_s": [CLAIMED["staged_before_s"], found["staged_before_s"]],
            "gap_before_units": [CLAIMED["gap_before"], units["staged_before"]],
        },
        "outcome": {"gap_after_units": [CLAIMED["gap_after"], units["staged_after"]]},
        "held_out": {"device_wait_units": [list(CLAIMED["device_wait"]), units["device_wait"]]},
        "not_of_a_schedule": {**LEDGER, "sum_s": round(sum(LEDGER.values()), 9), "base_s": CLAIMED["base_s"]},
        "under_determined": [
            "how what staging saves splits into shipping and work of the host",
            "how the gap at the boundary splits into update and weight sync",
            "how long generation takes",
        ],
    }


def sensitivity(costs: Costs) -> dict[str, dict[str, float]]:
    """The periods, and the gaps in units, when a cost is changed by `CHANGE`, for each cost that is not 0."""
    found = {}
    for name, cost in costs.ops.items():
        for part in ("issue_s", "work_s", "ship_s"):
            value = getattr(cost, part)
            for sign in (-1, 1) if value else ():
                changed = replace(cost, **{part: value * (1 + sign * CHANGE)})
                ops = MappingProxyType({**costs.ops, name: changed})
                there = replace(costs, ops=ops)
                gaps = {f"gap_{key}": units for key, units in gap_units(there).items()}
                found[f"{name}.{part} {sign * CHANGE:+.0%}"] = {**periods(there), **gaps}
    return found


def source() -> Program:
    """The step of the cell, as it is written."""
    from steptrace.lang.reference import resolve

    return resolve(PROGRAM)
