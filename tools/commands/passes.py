"""`steptrace passes [NAME]`: the passes and the named pipelines."""

from __future__ import annotations

import difflib

from absl import flags

from ..command import Command, UsageError


def _run(operands: list[str], _: flags.FlagValues) -> int:
    from steptrace.passes import PASSES, PIPELINES

    from ..pass_pages import pass_page, pass_table

    if not operands:
        print(pass_table())
        return 0
    name, known = operands[0].partition("{")[0], [*PASSES, *PIPELINES]
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3) or known
        raise UsageError(f"there is no pass or pipeline `{name}`: did you mean {', '.join(near)}?")
    print(pass_page(name))
    return 0


COMMAND = Command(
    name="passes",
    operands="[NAME]",
    summary="The passes with their options, and the pipelines that have a name.",
    examples=(("passes", "each of them, one a line"), ("passes take-ahead", "all about one pass")),
    run=_run,
    most=1,
)
