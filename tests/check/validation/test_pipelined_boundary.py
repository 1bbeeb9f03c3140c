"""The pipelined boundary of `grpo`, written out by hand, equals its source; the report says on what ground."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from schedule_cases import pipelined, source

from steptrace.check.validation import LAYERS, Budget, pair_of, validate, window_of
from steptrace.check.validation.windows import phases
from steptrace.ir import parse_program, print_program

CASE = Path(__file__).parents[2] / "cases" / "pipelined_boundary.st"


def test_the_text_is_the_schedule() -> None:
    """The file is `print_program(pipelined())`; write it anew when the rows of the op table change."""
    assert CASE.read_text() == print_program(pipelined())


def test_the_text_equals_grpo() -> None:
    report = validate(parse_program(CASE.read_text()), source(), budget=Budget(runs=300))
    assert report.ok, str(report)
    assert [layer.name for layer in report.layers] == list(LAYERS)


@pytest.mark.slow
def test_all_runs_of_the_window() -> None:
    report = validate(pipelined(), source())
    assert report.ok, str(report)
    assert report.window.whole
    assert {layer.runs for layer in report.layers} == {len(report.window.runs)}
    assert report.impossible == 0


def test_the_window_and_its_reason() -> None:
    window = window_of(pair_of(pipelined(), source()), Budget())
    assert (window.ahead, window.distance, window.lanes) == (1, 2, 5)
    assert (window.short, window.long) == (3, 7)
    counts = {setting.counts for setting in window.runs}
    assert {vector for vector in counts if len(vector) <= 3} == set(vectors(3))
    assert max(map(len, counts)) == 7
    flags = {setting.flags for setting in window.runs if setting.counts == (2, 1, 3)}
    assert len(flags) == 8, "three steps, each staged or not"


def vectors(most: int) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = [()]
    for _ in range(most):
        found += [(*vector, count) for vector in found if len(vector) == len(found[-1]) for count in range(4)]
    return found


def test_cadences_are_tried_at_each_place_of_the_window() -> None:
    """`every 10` is true in one of three neighbouring steps, in the first, second or third, or in none."""
    pair = pair_of(source(save_every=10), source(save_every=10))
    true = {tuple((phase + k + 1) % 10 == 0 for k in range(3)) for phase in phases(pair, 3)}
    assert true == {(False,) * 3, (True, False, False), (False, True, False), (False, False, True)}


def test_control_a_smaller_budget_says_that_it_is_smaller() -> None:
    report = validate(pipelined(), source(), budget=Budget(runs=50))
    assert not report.window.whole
    assert "not exhaustive" in str(report)


def test_the_report_has_room_for_the_proof_of_others() -> None:
    report = validate(source(), source(), proved="every edge, by the graph")
    assert "proved for all N and M: every edge, by the graph" in str(report)


def test_a_contract_that_refuses_empty_steps_tries_none() -> None:
    plain = source(empty="error")
    window = window_of(pair_of(replace(plain), plain), Budget())
    assert all(0 not in setting.counts for setting in window.runs)
