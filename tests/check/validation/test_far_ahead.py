"""Validation of schedules that run many steps ahead, and of lanes that start while the prologue still runs."""

from __future__ import annotations

import dataclasses

import pytest

from steptrace.check import check_schedule
from steptrace.check.validation import Budget, pair_of, validate, window_of
from steptrace.ir.program import Op, Program
from steptrace.lang.reference import resolve
from steptrace.passes import run_pipeline


def ahead(depth: int) -> tuple[Program, Program]:
    """GRPO that takes ``depth`` steps ahead, and its source."""
    made = run_pipeline(resolve(f"grpo{{staleness={depth}}}"), f"take-ahead{{depth={depth}}}").schedule
    return made.program, made.source


@pytest.mark.parametrize("depth", [8, 40, 400])
def test_the_number_of_runs_does_not_grow_with_the_distance(depth):
    window = window_of(pair_of(*ahead(depth)), Budget(runs=200))
    assert window.ahead == depth
    assert len(window.runs) <= 200 + 6
    assert max(len(run.counts) for run in window.runs) == window.long <= 160
    assert not window.whole
    assert window.bound == 5 * depth + 2


def test_control_near_windows_are_whole():
    window = window_of(pair_of(*ahead(1)), Budget())
    assert (window.short, window.bound, window.long, window.whole) == (3, 7, 7, True)
    assert {len(run.counts) for run in window.runs} == {0, 1, 2, 3, 7}


def test_a_schedule_far_ahead_is_validated():
    report = validate(*ahead(8), budget=Budget(runs=60))
    assert report.ok
    assert "not exhaustive" in str(report)


def with_lane(program: Program, id: str, lane: str) -> Program:
    """The program with a top-level op on another lane."""
    body = tuple(
        dataclasses.replace(node, lane=lane) if isinstance(node, Op) and node.id == id else node
        for node in program.body
    )
    return dataclasses.replace(program, body=body)


def test_every_lane_starts_after_the_prologue():
    source = resolve("grpo")
    other = with_lane(source, "on_step_begin", "side")
    check_schedule(other, source)
    report = validate(other, source, budget=Budget(runs=60))
    assert "initial_sync" not in str(report)
    assert [layer.name for layer in report.layers if layer.finding] == ["failure"], "later ops of its step pass it"
