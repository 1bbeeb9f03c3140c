"""`steptrace programs`: the built-in programs."""

from __future__ import annotations

from absl import flags

from ..command import Command


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_bool("names", False, "names only, one a line", flag_values=values)


def _run(_: list[str], values: flags.FlagValues) -> int:
    from steptrace.programs import NAMES

    print("\n".join(NAMES) if values.names else _table())
    return 0


def _table() -> str:
    """One line for each program: name, parameters with their defaults, first line of its doc."""
    from steptrace.programs import NAMES, load

    from ..table import aligned

    rows = [("program", "parameters", "what it is")]
    for name in NAMES:
        program = load(name)
        parameters = ", ".join([*map(str, program.parameters), f"staleness={program.contract.staleness}"])
        rows.append((name, parameters, program.doc.partition("\n")[0]))
    return aligned(rows)


COMMAND = Command(
    name="programs",
    operands="",
    summary="The built-in programs, with their parameters.",
    examples=(("programs", "a table"), ("programs --names", "names only, for scripts")),
    run=_run,
    define=_define,
)
