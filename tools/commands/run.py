"""`steptrace run PROGRAM`: the main job."""

from __future__ import annotations

import json

from absl import flags

from ..command import Command, UsageError


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_string("task", "spell_backward", "name of a reasoning-gym dataset", flag_values=values)
    flags.DEFINE_integer("steps", None, "updates to have done at the end; the task's recipe says", flag_values=values)
    flags.DEFINE_integer("seed", 0, "of parameters, prompts and sampling", flag_values=values)
    flags.DEFINE_string("out", None, "folder for all that is written; one below runs/", flag_values=values)
    flags.DEFINE_bool("resume", False, "go on from the last checkpoint in the folder", flag_values=values)
    flags.DEFINE_string("pipeline", "", "passes to apply, in their order", short_name="p", flag_values=values)
    flags.DEFINE_string("costs", "", "a TOML file: how long ops take, for `autoschedule`", flag_values=values)
    flags.DEFINE_string("against", "", "of a schedule, the program it was derived from", flag_values=values)
    flags.DEFINE_string("target", "inline", "where it runs: inline, or process", flag_values=values)
    flags.DEFINE_string("control", "", "break one thing on purpose: shuffled-rewards", flag_values=values)
    flags.DEFINE_integer("eval_size", 300, "held-out problems, before and after", flag_values=values)
    flags.DEFINE_bool("tensorboard", False, "write TensorBoard events too", flag_values=values)
    flags.DEFINE_string("profile", None, "write what each op took, for `plan --costs`", flag_values=values)
    flags.DEFINE_string("events", None, "write what lanes and devices did, for `timeline`", flag_values=values)
    flags.DEFINE_bool("timed", False, "wait for the device after each op, to time its work", flag_values=values)
    flags.DEFINE_bool("sanitize", False, "find what users' ops do beside their declaration", flag_values=values)
    flags.DEFINE_bool(
        "orders", False, "end with the step in another order, and one that is refused", flag_values=values
    )
    flags.DEFINE_string("mesh", "", "devices to shard the trainer over: data=2,fsdp=2,context=2", flag_values=values)
    flags.DEFINE_bool("json", False, "print the summary as a JSON object, on the last line", flag_values=values)


def _run(operands: list[str], values: flags.FlagValues) -> int:
    if values.against == "-":
        raise UsageError("standard input is read once: name the source by a file, a name or module:function")
    from steptrace.run.job import JobConfig, run_job

    from ..with_costs import with_costs

    given = {name: values[name].value for name in values if len(name) > 1 and name != "costs"}
    config = JobConfig(program=operands[0], **{**given, "pipeline": with_costs(values.pipeline, values.costs)})
    summary = run_job(config)
    if values.json:
        print(json.dumps(summary))
    return 0


COMMAND = Command(
    name="run",
    operands="PROGRAM",
    summary="Trains a small model on a task with the program, and shows what it has learned.",
    details="""\
PROGRAM may be a schedule that `opt` wrote: it is checked against its source, and runs as the pipeline would. The source
of a built-in program is known; name that of your own with --against.""",
    examples=(
        ("run grpo", "the main job"),
        ("run grpo --task chain_sum --steps 200 --seed 2 --out runs/a", "another task, kept in a folder of that name"),
        ("run grpo --out runs/a --resume", "goes on where that run stopped"),
        ("run grpo -p async-everything", "under a derived schedule"),
        ("run grpo -p pipelined-boundary --target process", "trainer, rollout and reference in processes of their own"),
        ("run grpo --steps 30 --profile costs.toml --events events.json", "to plan by, and to look at"),
        ("run fast.st --against my_job:step", "a schedule, perhaps edited by hand, and what it was derived from"),
        ("run grpo --control shuffled-rewards", "the control, which must learn nothing"),
        ("run 'grpo{staleness=1}' --steps 6 --json | tail -n 1", "a short run, for scripts"),
    ),
    run=_run,
    define=_define,
    least=1,
    most=1,
)
