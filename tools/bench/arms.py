"""The arms of the benchmarks of the step boundary: one program under four schedules."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

PROGRAM = "grpo{{staleness=1,prompts={prompts},samples={samples},save_every=1000000,logs=may_fail_late}}"
"""GRPO that trains on rollouts of the step before last, so that a step's groups can be taken ahead, and whose log may
fail late, so that a long one can be beside the step."""

ARMS: Mapping[str, str] = MappingProxyType(
    {
        "base": "",
        "pipelined": "pipelined-boundary-unstaged",
        "staged-after": "pipelined-boundary-staged-after",
        "staged-before": "pipelined-boundary",
    }
)
"""The pipeline of each arm: the program as written; taken ahead; its first micro-batch shipped ahead, in two places."""

LOG_ARMS: Mapping[str, str] = MappingProxyType(
    {
        "log-inline": ARMS["staged-before"],
        "log-own-lane": ARMS["staged-before"] + ",place{op=log+free,lane=io}",
    }
)
"""A log that takes longer than a micro-batch: on the lane that calls the trainer, and on a lane of its own, with what
frees the step's memory behind it: left where it was, that would wait for the log."""


def pipeline_of(arm: str, target: str) -> str:
    """The pipeline of an arm, by name in `ARMS` or `LOG_ARMS`.

    Where the rollout has a process of its own, what is overlapped sends it the weights behind the step's border too.
    """
    pipeline = {**ARMS, **LOG_ARMS}[arm]
    return f"{pipeline},async-weight-sync" if pipeline and target == "process" else pipeline


def program_text(prompts: int = 32, samples: int = 4) -> str:
    """The program with that many prompts a step, and completions of each."""
    return PROGRAM.format(prompts=prompts, samples=samples)
