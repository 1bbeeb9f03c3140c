"""A plan as Python, for the commands that print one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from steptrace.ir.program import Program


def emitted(program: Program, source: Program | None, title: str) -> str:
    """The plan of a program, or of a schedule that was derived from ``source``, as Python.

    Raises:
      SteptraceError: it is no legal schedule of its source, or cannot be lowered.
    """
    from steptrace.check.schedule import check_schedule
    from steptrace.lower import lower
    from steptrace.lower.emit import emit

    if source is not None:
        check_schedule(program, source)
    return emit(lower(program, source=source), title)
