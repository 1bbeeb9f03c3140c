"""`steptrace bench phases`: where the time of a step goes."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from typing import Any

from absl import flags

from ..command import Command
from ..table import aligned
from .load import ForeignLoad, shown

_EVALUATED = 32
"""Held-out problems of the job's evaluations, which are not what is measured."""


_SHOWN = 0.005
"""Seconds of the whole run below which a phase has no line."""


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_string("task", "spell_backward", "name of a reasoning-gym dataset", flag_values=values)
    flags.DEFINE_integer("steps", 50, "steps to measure", 1, flag_values=values)
    flags.DEFINE_integer("seed", 0, "of every draw", 0, flag_values=values)
    flags.DEFINE_bool("json", False, "print one JSON object instead of the table", flag_values=values)


def _run(operands: list[str], values: flags.FlagValues) -> int:
    from steptrace.run.job import JobConfig, run_job

    program = operands[0] if operands else "grpo"
    load = ForeignLoad()
    with tempfile.TemporaryDirectory() as out:
        summary = run_job(
            JobConfig(
                program=program,
                task=values.task,
                steps=values.steps,
                seed=values.seed,
                out=out,
                json=True,
                eval_size=_EVALUATED,
                timed=True,
            )
        )
    figures = {name: summary[name] for name in ("program", "task", "steps", "seed", "phase_ms", "phase_seconds")}
    foreign = load.share()
    if values.json:
        print(json.dumps({**figures, "foreign_cpu": foreign}))
        return 0
    print(phase_table(figures))
    print(f"\nother processes took {shown(foreign)} of the machine meanwhile")
    return 0


def phase_table(figures: Mapping[str, Any]) -> str:
    """The phases that take any time, longest first: median milliseconds a step, seconds in all, share."""
    total = sum(figures["phase_seconds"].values()) or 1.0
    rows = [("phase", "ms a step", "s in all", "share")]
    longest = sorted(figures["phase_seconds"].items(), key=lambda item: -item[1])
    for kind, seconds in (item for item in longest if item[1] >= _SHOWN):
        median = figures["phase_ms"].get(kind, 0.0)
        rows.append((kind, f"{median:9.2f}", f"{seconds:8.2f}", f"{seconds / total:5.1%}"))
    rows.append(("all", f"{sum(figures['phase_ms'].values()):9.2f}", f"{total:8.2f}", ""))
    return f"{figures['program']} on {figures['task']}, {figures['steps']} steps\n\n{aligned(rows)}"


COMMAND = Command(
    name="bench phases",
    operands="[PROGRAM]",
    summary="Where the time of a step goes: each kind of op, waited for until its work is done.",
    examples=(
        ("bench phases", "the main job's program (grpo), 50 steps"),
        ("bench phases grpo_stream --task chain_sum --json", "another program and task, for scripts"),
    ),
    run=_run,
    define=_define,
    most=1,
    details="The first step compiles, so the seconds hold compile times; the medians do not.",
)
