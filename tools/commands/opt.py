"""`steptrace opt PROGRAM -p PIPELINE`: another schedule of a program, derived by passes."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from absl import flags

from ..command import Command, UsageError

if TYPE_CHECKING:
    from steptrace.ir.program import Program
    from steptrace.passes import PipelineResult


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "pipeline", "", "passes, or a named pipeline, in their order", short_name="p", flag_values=values
    )
    flags.DEFINE_string("costs", "", "a TOML file: how long ops take, for `autoschedule`", flag_values=values)
    flags.DEFINE_string("mesh", "", "fill `select-logps-head` in as the main job on it does", flag_values=values)
    flags.DEFINE_string("task", "spell_backward", "with --mesh: the task of that job", flag_values=values)
    flags.DEFINE_enum(
        "view",
        "text",
        ["text", "nest", "grid"],
        "the schedule as text, its structure, or lanes over time",
        flag_values=values,
    )
    flags.DEFINE_enum("emit", "program", ["program", "py"], "the schedule, or its plan as Python", flag_values=values)
    flags.DEFINE_string("print-after", "", "show the schedule after this pass, or after `all`", flag_values=values)
    flags.DEFINE_string("dump", "", "write the schedule after each pass into this folder", flag_values=values)
    flags.DEFINE_bool("remarks", False, "show what each pass did, and what it left and why", flag_values=values)
    flags.DEFINE_bool("python", False, "show the motions as Python that makes the same schedule", flag_values=values)
    flags.DEFINE_bool("time", False, "show the time that each pass took", flag_values=values)
    flags.DEFINE_string("output", "", "write to this file, not to standard output", short_name="o", flag_values=values)


def _run(operands: list[str], values: flags.FlagValues) -> int:
    from steptrace.lang.reference import resolve

    from ..output import told_if_slow, write_text
    from ..with_costs import with_costs
    from ..with_mesh import with_mesh

    if not values.pipeline:
        raise UsageError(f"`opt` needs a pipeline: opt {operands[0]} -p pipelined-boundary")
    pipeline = with_mesh(with_costs(values.pipeline, values.costs), values.mesh, values.task)
    with told_if_slow(f"{values.pipeline} is applied to {operands[0]}"):
        result = _applied(resolve(operands[0]), pipeline)
    _show(result, values)
    if values.dump:
        _write_dumps(result, values.dump)
    write_text(_viewed(result, values, operands[0]), values.output)
    return 0


def _applied(program: Program, pipeline: str) -> PipelineResult:
    """The pipeline applied; a pass that crashes leaves a file with which that can be seen again."""
    from steptrace.diag.base import Note, SteptraceError
    from steptrace.passes import reproducer_of, run_pipeline

    from ..output import write_text

    try:
        return run_pipeline(program, pipeline)
    except SteptraceError as error:
        content = reproducer_of(error)
        if content:
            name = re.sub(r"\W+", "-", content.partition("\n")[0].rpartition(" -p ")[2].partition("{")[0])
            path = f"steptrace-crash-{name}.st"
            write_text(content, path)
            error.notes = (*error.notes, Note(f"the program as the pass got it, and the pass: {path}"))
        raise


def _viewed(result: PipelineResult, values: flags.FlagValues, name: str) -> str:
    from steptrace.check.edges import edges_of
    from steptrace.check.grid import grid_view
    from steptrace.ir.nest import nest_view
    from steptrace.ir.printer import print_program

    from ..plan_text import emitted

    schedule = result.schedule
    if values.python:
        return schedule.as_python()
    if values.emit == "py":
        return emitted(schedule.program, schedule.source, f"{name} under {values.pipeline}")
    if values.view == "grid":
        return grid_view(schedule.program, edges=edges_of(schedule.reference))
    return nest_view(schedule.program) if values.view == "nest" else print_program(schedule.program)


def _show(result: PipelineResult, values: flags.FlagValues) -> None:
    """What was asked for beside the schedule, on standard error."""
    wanted, names = values["print-after"].value, [_name(text) for text, _ in result.dumps]
    if wanted not in ("", "all", *names):
        raise UsageError(f"the pipeline has no pass `{wanted}`; it has {', '.join(names)}")
    for text, program in result.dumps:
        if wanted in ("all", _name(text)):
            print(f"# after {text}\n{program}", end="", file=sys.stderr)
    used = {remark.pass_name for remark in result.remarks if remark.kind == "applied"}
    for remark in result.remarks:
        if values.remarks or remark.kind == "found":
            print(remark, file=sys.stderr)
        elif remark.kind == "missed":
            how = "did a part" if remark.pass_name in used else "declined"
            print(f"note: {remark.pass_name} {how}: {remark.message}; --remarks shows more", file=sys.stderr)
    if values.time:
        for name, seconds in result.seconds:
            print(f"{seconds * 1e3:8.2f} ms  {name}", file=sys.stderr)


def _name(text: str) -> str:
    """The name of a pass, without its options."""
    return text.partition("{")[0]


def _write_dumps(result: PipelineResult, folder: str) -> None:
    """The schedule after each pass, in files numbered in their order."""
    from pathlib import Path

    from steptrace.diag.command import OutputNotWritableError

    from ..output import write_text

    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputNotWritableError(f"cannot write to `{folder}`: {error.strerror}") from error
    for number, (name, text) in enumerate(result.dumps, 1):
        write_text(text, str(Path(folder) / f"{number:02d}-{_name(name)}.st"))


COMMAND = Command(
    name="opt",
    operands="PROGRAM",
    summary="Another schedule of a program, derived by passes; the order of each is checked.",
    details="""\
The schedule goes to standard output or to the file of -o; remarks, times and what --print-after shows go to standard
error. `steptrace passes` lists passes and named pipelines; `steptrace explain take-ahead` is the page of one.
A pass that finds no room leaves the schedule as it is; a note on standard error says so, and --remarks shows the
edge in its way and the way out. The exit code is 0 all the same. If a pass crashes, a file is written with which the
crash can be seen again.""",
    examples=(
        ("opt 'grpo{staleness=1}' -p pipelined-boundary -o pipelined.st", "a named pipeline"),
        ("opt grpo -p take-ahead{depth=1},defer-metrics --remarks", "passes with options, and what became of them"),
        ("dump grpo | steptrace opt - -p defer-metrics --view=grid", "standard input; lanes over time"),
        (
            "opt grpo -p select-logps-head --mesh=data=2,fsdp=2,context=2",
            "the log-prob head that the main job takes there",
        ),
        ("opt 'grpo{staleness=1}' -p pipelined-boundary --emit=py -o fast.py", "a Python loop with a function a lane"),
        ("opt 'grpo{staleness=1}' -p autoschedule --costs=costs.toml", "the fastest that is found, and its pipeline"),
        ("opt grpo -p defer-metrics --print-after=all --time", "the schedule after each pass, and how long each took"),
    ),
    run=_run,
    define=_define,
    least=1,
    most=1,
)
