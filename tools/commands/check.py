"""`steptrace check FILE`: whether a program is well formed."""

from __future__ import annotations

from absl import flags

from ..command import Command


def _run(operands: list[str], _: flags.FlagValues) -> int:
    from steptrace.ir.program import Loop
    from steptrace.lang.reference import resolve

    program = resolve(operands[0])
    counts = (
        (sum(1 for _ in program.ops()), "op"),
        (sum(isinstance(node, Loop) for node in program.body), "loop"),
        (len(program.resources), "resource"),
    )
    print(f"ok: {program.name}: {', '.join(_count(number, noun) for number, noun in counts)}")
    return 0


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


COMMAND = Command(
    name="check",
    operands="FILE",
    summary="Whether a program is well formed, and its printed types and effects are true.",
    examples=(
        ("check grpo.st", "a file, perhaps edited by hand; what is wrong is shown with line and column"),
        ("dump grpo | steptrace check -", "standard input"),
        ("check my_job:step", "a program in Python"),
    ),
    run=_run,
    least=1,
    most=1,
)
