"""Plans for runs in virtual time."""

from __future__ import annotations

from functools import lru_cache

from steptrace.lang.reference import resolve
from steptrace.lower import Plan, lower
from steptrace.passes import run_pipeline
from steptrace.simulate import Cost, Durations

PIPES = (
    "",
    "take-ahead{depth=1}",
    "defer-metrics",
    "fuse-update",
    "pipelined-boundary",
    "pipelined-boundary-staged-after",
    "pipelined-boundary-unstaged",
    "async-everything",
)

COSTS = {
    "dispatch": Cost(1, 5),
    "reward": Cost(1),
    "pack": Cost(2),
    "ref_logps": Cost(0, 1),
    "fwd_bwd": Cost(2, 14),
    "update": Cost(1, 3),
    "get_metrics": Cost(1),
    "sync_weights": Cost(1, 2),
    "log": Cost(4),
    "on_step_end": Cost(3),
}
"""Whole numbers, so that sums are exact."""

PLAIN = Durations(COSTS)


@lru_cache
def plan_of(pipeline: str = "", program: str = "grpo{staleness=1,save_every=3}") -> Plan:
    """The plan of a program under a pipeline."""
    schedule = run_pipeline(resolve(program), pipeline).schedule
    return lower(schedule.program, "inline", source=schedule.source)
