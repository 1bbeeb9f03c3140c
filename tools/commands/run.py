"""`steptrace run PROGRAM`: the main job."""

from __future__ import annotations

import json

from absl import flags

from ..command import Command


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_string("task", "spell_backward", "name of a reasoning-gym dataset", flag_values=values)
    flags.DEFINE_integer("steps", None, "steps to have done at the end (default: the task's)", 0, flag_values=values)
    flags.DEFINE_integer("seed", 0, "of every draw", 0, flag_values=values)
    flags.DEFINE_string("out", None, "folder for metrics, checkpoints and plot", flag_values=values)
    flags.DEFINE_bool("resume", False, "go on from the last checkpoint below --out", flag_values=values)
    flags.DEFINE_string("pipeline", "", "passes to apply, in their order", short_name="p", flag_values=values)
    flags.DEFINE_string("target", "inline", "what the program is lowered to", flag_values=values)
    flags.DEFINE_bool("json", False, "print the summary as a JSON object, on the last line", flag_values=values)


def _run(operands: list[str], values: flags.FlagValues) -> int:
    from steptrace.run.job import JobConfig, run_job

    report = run_job(
        JobConfig(
            program=operands[0],
            task=values.task,
            steps=values.steps,
            seed=values.seed,
            out=values.out,
            resume=values.resume,
            pipeline=values.pipeline,
            target=values.target,
            json=values.json,
        )
    )
    if values.json:
        print(json.dumps(report))
    return 0


COMMAND = Command(
    name="run",
    operands="PROGRAM",
    summary="Trains a small model on a task with the program, and says what it has learned.",
    examples=(
        ("run grpo", "the main job"),
        ("run grpo --task chain_sum --steps 200 --seed 2 --out runs/a", "another task, kept in a folder"),
        ("run grpo --out runs/a --resume", "goes on where that run stopped"),
        ("run 'grpo{staleness=1}' --steps 6 --json | tail -n 1", "a short run, for scripts"),
    ),
    run=_run,
    define=_define,
    least=1,
    most=1,
)
