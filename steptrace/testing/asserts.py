"""Assertions about programs and their schedules, for tests."""

from __future__ import annotations

from pathlib import Path

from steptrace.check.proof import prove_equal
from steptrace.check.validation import Report
from steptrace.diag.base import SteptraceError
from steptrace.ir.program import Origin, Program
from steptrace.testing.expected import difference, updating
from steptrace.testing.texts import ProgramLike, program_of, shown


def assert_equivalent(a: ProgramLike, b: ProgramLike) -> Report:
    """Asserts that two programs train exactly the same, one of them being the source of the other.

    The order is proved for all numbers of steps and micro-batches, and both are run side by side; see
    ``steptrace.check.proof``.

    Args:
      a: a schedule, and
      b: the program that it was derived from; or the other way round.

    Returns:
      What was proved and tried.

    Raises:
      AssertionError: they differ, with the broken edge or a run that shows it.
    """
    one, other = program_of(a), program_of(b)
    schedule, source = (other, one) if _is_moved(other) and not _is_moved(one) else (one, other)
    try:
        return prove_equal(schedule, source)
    except SteptraceError as error:
        raise AssertionError(f"not equal:\n{error.render()}") from error


def _is_moved(program: Program) -> bool:
    return any(op.shift or op.micro is not None or op.origin != Origin(op.id) for op in program.ops())


def assert_refused(program: ProgramLike, pipeline: str, *, code: str) -> str:
    """Asserts that a pipeline is refused on a program, or that one of its passes declines, with this code.

    Args:
      program: the program.
      pipeline: the passes.
      code: the code: ``ST204``.

    Returns:
      The diagnostic or the remark as text, for further assertions about its words.

    Raises:
      AssertionError: all of it was applied, or it was refused with other codes only.
    """
    from steptrace.passes import run_pipeline

    source = program_of(program)
    try:
        result = run_pipeline(source, pipeline)
    except SteptraceError as error:
        if error.code == code:
            return error.render()
        raise AssertionError(f"`{pipeline}` is refused with {error.code}, not {code}:\n{error.render()}") from error
    missed = [remark for remark in result.remarks if remark.kind == "missed"]
    for remark in missed:
        if remark.code == code:
            return str(remark)
    left = "\n".join(map(str, missed)) or "all of it was applied"
    raise AssertionError(f"`{pipeline}` is not refused with {code} on {source.name}:\n{left}")


def assert_dump(program: ProgramLike, expected: str | Path, *, view: str = "text") -> None:
    """Asserts that a program prints as expected.

    With ``STEPTRACE_UPDATE=1`` an expected file is rewritten instead, except where ``CI`` is set.

    Args:
      program: the program.
      expected: the text, or the file that holds it.
      view: ``text``, ``nest`` or ``grid``.

    Raises:
      AssertionError: it prints as something else; shows the lines that differ.
    """
    found = shown(program_of(program), view)
    if isinstance(expected, Path):
        if updating():
            expected.write_text(found, encoding="utf-8")
            return
        wanted = expected.read_text(encoding="utf-8") if expected.exists() else ""
    else:
        wanted = expected
    found, wanted = found.strip("\n"), wanted.strip("\n")
    if found != wanted:
        raise AssertionError(f"another {view} of the program\n{difference(wanted, found)}")
