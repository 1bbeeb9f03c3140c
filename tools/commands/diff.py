"""`steptrace diff PROGRAM PROGRAM`: what differs between two programs or schedules, op by op."""

from __future__ import annotations

from absl import flags

from ..command import Command, UsageError

SAME, DIFFERENT = 0, 1


def _run(operands: list[str], _: flags.FlagValues) -> int:
    from steptrace.check.difference import differences
    from steptrace.lang.reference import resolve

    if operands == ["-", "-"]:
        raise UsageError("standard input is one program: name the other by a file")
    changes = differences(*map(resolve, operands))
    for subject, words in changes:
        print(f"{subject}\n    {words}")
    return DIFFERENT if changes else SAME


COMMAND = Command(
    name="diff",
    operands="PROGRAM PROGRAM",
    summary="What differs in the second program, op by op: moved, ahead, on another lane, split, joined, added.",
    details="Exit code 0: the same but for places in source files; 1: different, or refused.",
    examples=(
        ("diff 'grpo{staleness=1}' pipelined.st", "what a pipeline has changed"),
        ("diff grpo grpo_stream", "two programs"),
        ("opt grpo -p defer-metrics | steptrace diff grpo -", "standard input"),
    ),
    run=_run,
    least=2,
    most=2,
)
