"""`steptrace dump PROGRAM`: a program as text."""

from __future__ import annotations

from absl import flags

from ..command import Command


def _define(values: flags.FlagValues) -> None:
    views = "all of it, to be read back; the structure only; or lanes over time for a few steps"
    flags.DEFINE_enum("view", "text", ["text", "nest", "grid"], views, flag_values=values)
    flags.DEFINE_enum("emit", "program", ["program", "py"], "the program, or its plan as Python", flag_values=values)
    flags.DEFINE_string("output", "", "write to this file, not to standard output", short_name="o", flag_values=values)


def _run(operands: list[str], values: flags.FlagValues) -> int:
    from steptrace.ir.nest import nest_view
    from steptrace.ir.printer import print_program
    from steptrace.lang.reference import resolve

    from ..output import write_text
    from ..plan_text import emitted

    program = resolve(operands[0])
    if values.emit == "py":
        from steptrace.lang.source import scheduled, source_of

        text = emitted(program, source_of(program) if scheduled(program) else None, operands[0])
    elif values.view == "grid":
        from steptrace.check.grid import grid_view

        text = grid_view(program)
    else:
        text = nest_view(program) if values.view == "nest" else print_program(program)
    write_text(text, values.output)
    return 0


COMMAND = Command(
    name="dump",
    operands="PROGRAM",
    summary="A program as text: every op with its types, effects, lane and line.",
    examples=(
        ("dump grpo", "the text form, which `check` and `run` read back"),
        ("dump 'grpo{staleness=1}' -o grpo.st", "with a parameter, into a file"),
        ("dump my_job:step --view=nest", "the structure of your own program"),
        ("dump pipelined.st --view=grid", "what each lane runs when"),
        ("dump grpo --emit=py -o grpo_loop.py", "the plan as a Python loop: grpo_loop.run(parts, steps=5)"),
    ),
    run=_run,
    define=_define,
    least=1,
    most=1,
)
