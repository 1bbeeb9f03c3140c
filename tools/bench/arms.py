"""The arms of the benchmarks of the step boundary: one program under four schedules."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

PROGRAM = "grpo{{staleness=1,prompts={prompts},samples={samples},save_every=1000000}}"
"""GRPO that trains on rollouts of the step before last, so that a step's groups can be taken ahead."""

ARMS: Mapping[str, str] = MappingProxyType(
    {
        "base": "",
        "pipelined": "pipelined-boundary-unstaged",
        "staged-after": "pipelined-boundary-staged-after",
        "staged-before": "pipelined-boundary",
    }
)
"""The pipeline of each arm: the program as written; taken ahead; its first micro-batch shipped ahead, in two places."""


def program_text(prompts: int = 32, samples: int = 4) -> str:
    """The program with that many prompts a step, and completions of each."""
    return PROGRAM.format(prompts=prompts, samples=samples)
