"""What motions change, as lines of the nest view, and the refusals of motions."""

from __future__ import annotations

import difflib
from collections.abc import Callable

import pytest

from steptrace.check.schedule import check_schedule
from steptrace.diag import SteptraceError
from steptrace.ir import nest_view, verify
from steptrace.lang.reference import resolve
from steptrace.motion import Moved, Schedule
from steptrace.motion.proof import BrokenEdge


def plain(name: str = "grpo{staleness=1}") -> Schedule:
    """A built-in program as written."""
    return Schedule.of(resolve(name))


def lines(schedule: Schedule) -> list[str]:
    """The nest view."""
    return nest_view(schedule.program).splitlines()


def step(schedule: Schedule) -> list[str]:
    """The lines of the step, without indentation."""
    shown = lines(schedule)
    return [line.strip() for line in shown[shown.index("step k") + 1 :]]


def changed(before: Schedule, moved: Moved) -> list[str]:
    """The lines that went and came, in order; the result is well formed, and a schedule of its source."""
    after = moved.schedule
    verify(after.program)
    assert check_schedule(after.program, after.source) == after.reference
    compared = difflib.unified_diff(lines(before), lines(after), n=0)
    return [f"{line[0]} {line[1:].strip()}" for line in compared if line[0] in "+-" and line[:3] not in ("+++", "---")]


def refusal(action: Callable[[], object]) -> SteptraceError:
    """The error that an action raises."""
    with pytest.raises(SteptraceError) as raised:
        action()
    return raised.value


def edge_of(error: SteptraceError) -> str:
    """The edge behind a refusal: its ends with the distance."""
    assert isinstance(error.__cause__, BrokenEdge)
    edge = error.__cause__.edge
    return f"{edge.before} -> {edge.after} ({edge.distance})"
