"""`steptrace programs`: the built-in programs."""

from __future__ import annotations

from absl import flags

from ..command import Command


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_bool("names", False, "names only, one a line", flag_values=values)


def _run(_: list[str], values: flags.FlagValues) -> int:
    from steptrace.lang.reference import built_in_programs

    return 0


COMMAND = Command(
    name="programs",
    operands="",
    summary="The built-in programs, with their parameters.",
    examples=(("programs", "a table"), ("programs --names", "names only, for scripts")),
    run=_run,
    define=_define,
)
