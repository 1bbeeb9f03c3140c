"""Runs the structural checks."""

from __future__ import annotations

from steptrace.diag.base import SteptraceError
from steptrace.ir.places import Places
from steptrace.ir.program import Program


def problems(program: Program, places: Places | None = None) -> list[SteptraceError]:
    """Every structural problem."""
    return []


def verify(program: Program, places: Places | None = None) -> None:
    """Raises the first structural problem."""
    for problem in problems(program, places):
        raise problem
