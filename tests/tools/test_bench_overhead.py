"""`steptrace bench overhead`: that it runs, what it gives, and that the loop by hand is the same loop."""

from __future__ import annotations

import json

import pytest

from steptrace_tools.bench import overhead, overhead_run
from steptrace_tools.bench.overhead_run import OPS, Workload, _idle, empty
from steptrace_tools.cli import main

KEYS = {
    "plan_over_loop",
    "plan_step_ms",
    "loop_step_ms",
    "us_per_op",
    "us_per_handover",
    "ops_per_step",
    "driving_share",
    "equal",
    "foreign_cpu",
}
TINY = ["--steps=4", "--rounds=1", "--rows=4", "--dim=16", "--empty-steps=20"]


@pytest.mark.slow
def test_it_runs_and_both_ways_train_the_same(capsys: pytest.CaptureFixture[str]):
    assert main(["bench", "overhead", "--json", *TINY]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {*figures} == KEYS
    assert figures["equal"] is True
    assert figures["plan_over_loop"] == pytest.approx(figures["plan_step_ms"] / figures["loop_step_ms"])


@pytest.mark.slow
def test_control_a_loop_that_leaves_a_call_out_is_seen(monkeypatch: pytest.MonkeyPatch):
    whole = overhead_run._by_hand

    def short(parts, work, steps):
        return whole(parts, work, steps - 1)

    monkeypatch.setattr(overhead_run, "_by_hand", short)
    assert overhead.measured(Workload(steps=5, rounds=1, rows=4, dim=16, empty_steps=20))["equal"] is False


def test_ops_that_do_nothing_are_measured_on_one_lane_and_on_two():
    figures = empty(Workload(rounds=1, empty_steps=20))
    assert {*figures} == {"us_per_op", "us_per_handover"}
    assert len(list(_idle().ops())) == OPS


@pytest.mark.parametrize("equal", [True, False])
def test_the_table_says_whether_it_compares_alike(equal: bool):
    figures = dict.fromkeys(KEYS, 0.5) | {"equal": equal, "ops_per_step": 19}
    assert ("THE TWO DID NOT TRAIN THE SAME" in overhead._table(figures)) is not equal
