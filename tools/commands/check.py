"""`steptrace check FILE [--against PROGRAM]`: whether a program is well formed, and equal to its source."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

from absl import flags

from ..command import Command, UsageError

if TYPE_CHECKING:
    from steptrace.ir.program import Program

OK, REFUSED = 0, 1


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_string("against", "", "the program it must be equal to: its source", flag_values=values)
    marked = "with --against: what each lane runs when, with a broken edge marked"
    flags.DEFINE_enum("view", "", ["", "grid"], marked, flag_values=values)


def _run(operands: list[str], values: flags.FlagValues) -> int:
    if not values.against and values.view:
        raise UsageError("`--view=grid` is of a comparison: name the source too, --against=PROGRAM")
    if not values.against:
        return _check_structure(operands[0])
    if operands[0] == values.against == "-":
        raise UsageError("standard input is one program: name the other by a file")
    return _check_against(operands[0], values.against, grid=values.view == "grid")


def _check_structure(reference: str) -> int:
    """Checks a program by itself; of a text, shows every problem."""
    from steptrace.ir.verify import problems
    from steptrace.lang.reference import is_text, read, resolve
    from steptrace.lang.source import scheduled

    if is_text(reference):
        parsed = read(reference)
        program, found = parsed.program, problems(parsed.program, parsed.places)
        if not found and not scheduled(program):
            found = problems(program, parsed.places, own_order=True)
    else:
        program, found = resolve(reference), []
    for problem in found:
        print(problem.render(), file=sys.stderr)
    if not found:
        print(f"ok: {program.name}: {_contents(program)}")
        _tell_unchecked(program, reference)
    return REFUSED if found else OK


def _tell_unchecked(program: Program, reference: str) -> None:
    """Say so where a program is another's schedule, or looks like one: its order was not compared."""
    from steptrace.check.difference import differences
    from steptrace.diag.base import SteptraceError
    from steptrace.lang.source import named_source, scheduled, source_of

    why = scheduled(program)
    try:
        source, name = source_of(program), named_source(program)
    except SteptraceError:
        source, name = None, "PROGRAM"
    if not why and (source is None or not differences(source, program)):
        return
    what = f"this is a schedule ({why})" if why else f"this is not `{name}` as it is written"
    asked = shlex.join(["steptrace", "check", reference, "--against", name])
    print(f"the order was not checked: {what}; compare it with its source: {asked}")


def _check_against(reference: str, against: str, *, grid: bool) -> int:
    """Checks that a program equals its source; shows what was proved and tried, or what stands against it."""
    from steptrace.check.proof import prove_equal
    from steptrace.diag.base import SteptraceError
    from steptrace.lang.reference import resolve

    from ..output import told_if_slow

    program, source = resolve(reference), resolve(against)
    try:
        with told_if_slow(f"runs of {reference} and {against} are compared, side by side and cut off by failures"):
            report = prove_equal(program, source)
    except SteptraceError as error:
        print(f"not equal to {against}: {error.code}: {error.message}")
        if grid:
            sys.stdout.write(_grid(program, source))
        raise
    print(report)
    if grid:
        sys.stdout.write(_grid(program, source))
    return OK


def _grid(program: Program, source: Program) -> str:
    """The grid of a schedule with the first edge that it breaks, if any."""
    from steptrace.check.edges import edges_of
    from steptrace.check.grid import grid_view
    from steptrace.check.places import broken
    from steptrace.check.reference import reference_of
    from steptrace.diag.base import SteptraceError

    try:
        edges = edges_of(reference_of(program, source))
        return grid_view(program, edges=edges, broken=next(broken(program, edges), None))
    except SteptraceError:
        return grid_view(program)


def _contents(program: Program) -> str:
    from steptrace.ir.counts import updates_of
    from steptrace.ir.program import Loop

    counts = (
        (sum(1 for _ in program.ops()), "op"),
        (sum(isinstance(node, Loop) for node in program.body), "loop"),
        (len(program.resources), "resource"),
    )
    parts = [f"{number} {noun}" if number == 1 else f"{number} {noun}s" for number, noun in counts]
    updates = updates_of(program, 1)
    return ", ".join([*parts, "1 update a step" if updates == 1 else f"{updates} updates a step"])


COMMAND = Command(
    name="check",
    operands="FILE",
    summary="Whether a program is well formed; with --against, whether it trains exactly what its source trains.",
    details="""\
Without --against: its structure, and that its printed types and effects are true; every problem is shown. The order of
a schedule is not checked then, and a line says so.
With --against PROGRAM: the order, liveness and capacity of the schedule are proved for all numbers of steps and
micro-batches, and schedule and source are run side by side. Exit code 0: equal. 1: refused, with the broken edge or a
run in which the two differ.""",
    examples=(
        ("check grpo.st", "a file, perhaps edited by hand; what is wrong is shown with line and column"),
        ("dump grpo | steptrace check -", "standard input"),
        ("check my_job:step", "a program in Python"),
        ("check pipelined.st --against 'grpo{staleness=1}'", "a schedule and the program that it was derived from"),
    ),
    run=_run,
    define=_define,
    least=1,
    most=1,
)
