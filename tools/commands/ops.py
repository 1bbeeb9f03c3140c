"""`steptrace ops [NAME]`: the op table."""

from __future__ import annotations

import difflib

from absl import flags

from ..command import Command, UsageError


def _run(operands: list[str], _: flags.FlagValues) -> int:
    from steptrace.ir.builtin import BUILTIN

    from ..op_pages import op_page, op_table

    if not operands:
        print(op_table(BUILTIN.values()))
        return 0
    name = operands[0]
    if name not in BUILTIN:
        near = difflib.get_close_matches(name, BUILTIN, n=3) or list(BUILTIN)
        raise UsageError(f"`{name}` is not in the op table: did you mean {', '.join(near)}?")
    print(op_page(BUILTIN[name]))
    return 0


COMMAND = Command(
    name="ops",
    operands="[NAME]",
    summary="The op table: what an op takes, gives, reads and writes, and where it runs.",
    examples=(("ops", "every op, one a line"), ("ops fwd_bwd", "all about one op")),
    run=_run,
    most=1,
)
