"""What `bench compile` measures of one step."""

from __future__ import annotations

import pytest

from steptrace.diag import SteptraceError
from steptrace_tools.bench.compile import report
from steptrace_tools.bench.step_times import TASKS, step_times


@pytest.fixture(scope="module")
def times() -> dict[str, float]:
    return step_times("grpo", "defer-metrics")


def test_every_task_takes_some_time(times: dict[str, float]) -> None:
    assert tuple(times) == TASKS
    assert min(times.values()) > 0
    assert times["validate"] > times["derive"], "runs take longer than the graph"


def test_they_are_the_last_line_of_the_report(times: dict[str, float]) -> None:
    found = {"step": dict(zip(TASKS, (0.004, 0.03, 2.5), strict=True)), "ops": [], "seconds": {}, "growth": {}}
    assert report(found).endswith("the pipelined boundary of grpo: import 4.0, derive 30.0, validate 2500.0")


def test_control_a_program_that_is_not_there_is_not_measured() -> None:
    with pytest.raises(SteptraceError):
        step_times("grpoo")
