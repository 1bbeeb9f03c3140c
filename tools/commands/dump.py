"""`steptrace dump PROGRAM`: a program as text."""

from __future__ import annotations

from absl import flags

from ..command import Command


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_enum(
        "view", "text", ["text", "nest"], "all of it, to be read back; or the structure only", flag_values=values
    )
    flags.DEFINE_string("output", "", "write to this file, not to standard output", short_name="o", flag_values=values)


def _run(operands: list[str], values: flags.FlagValues) -> int:
    from steptrace.ir.nest import nest_view
    from steptrace.ir.printer import print_program
    from steptrace.lang.reference import resolve

    from ..output import write_text

    show = nest_view if values.view == "nest" else print_program
    write_text(show(resolve(operands[0])), values.output)
    return 0


COMMAND = Command(
    name="dump",
    operands="PROGRAM",
    summary="A program as text: every op with its types, effects, lane and line.",
    examples=(
        ("dump grpo", "the text form, which `check` and `run` read back"),
        ("dump 'grpo{staleness=1}' -o grpo.st", "with a parameter, into a file"),
        ("dump my_job:step --view=nest", "the structure of your own program"),
    ),
    run=_run,
    define=_define,
    least=1,
    most=1,
)
