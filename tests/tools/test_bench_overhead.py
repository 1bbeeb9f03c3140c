"""`steptrace bench overhead`: that it runs, what it gives, and that the loop by hand is the same loop."""

from __future__ import annotations

import json

import pytest

from steptrace.testing.hash_parts import hash_parts
from steptrace_tools.bench import overhead, overhead_run
from steptrace_tools.bench.overhead_run import OPS, Workload, _idle, empty
from steptrace_tools.cli import main

BESIDE = {"plan_over_loop", "plan_over_loop_wall", "plan_step_ms", "loop_step_ms", "driving_share"}
KEYS = BESIDE | {
    "loop_over_loop",
    "plan_over_parts",
    "parts_step_ms",
    "driving_us",
    "us_per_op",
    "us_per_handover",
    "ops_per_step",
    "equal",
    "foreign_cpu",
}
TINY = ["--steps=4", "--rounds=1", "--rows=4", "--dim=16", "--empty-steps=20", "--job-rounds=0"]
WORK = Workload(steps=5, rounds=1, rows=4, dim=16, empty_steps=20, job_rounds=0)


@pytest.mark.slow
def test_it_runs_and_all_ways_train_and_log_the_same(capsys: pytest.CaptureFixture[str]):
    assert main(["bench", "overhead", "--json", *TINY]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {*figures} == KEYS
    assert figures["equal"] is True
    assert figures["plan_over_loop_wall"] == pytest.approx(figures["plan_step_ms"] / figures["loop_step_ms"])
    assert figures["driving_share"] == pytest.approx(figures["driving_us"] / (1e3 * figures["loop_step_ms"]))


@pytest.mark.slow
@pytest.mark.parametrize("way", ["by_ops", "by_parts"])
def test_control_a_loop_that_leaves_a_step_out_is_seen(way: str, monkeypatch: pytest.MonkeyPatch):
    whole = getattr(overhead_run, way)
    monkeypatch.setattr(overhead_run, way, lambda *args: whole(*args[:-1], args[-1] - 1))
    monkeypatch.setattr(overhead_run, "hollow", lambda work: [overhead_run.Way(cpu_s=[1.0])] * 2)
    assert overhead.measured(WORK)["equal"] is False


def test_a_step_of_ops_that_return_at_once_makes_every_call_of_the_program():
    seen: dict[str, list[str]] = {}
    for name, drive in (("plan", overhead_run._hollow_plan), ("loop", overhead_run._hollow_loop)):
        moments = overhead_run._Moments()
        hollow = overhead_run._Hollow(WORK, moments)

        def noted(session, at, *operands, name=name, hollow=hollow):
            seen.setdefault(name, []).append(at.op.id)
            return hollow(session, at, *operands)

        drive({**hash_parts(), "tracker": moments}, "grpo{save_every=1000000}", 3, noted)
        assert len(moments.at) == 3
    assert seen["plan"] == seen["loop"]
    assert len(seen["plan"]) == 1 + 3 * (overhead_run.ops_per_step(WORK.micro_batches) + 1)  # and the loop's end


def test_what_a_way_takes_beyond_another_is_of_the_medians_of_a_round():
    one, two = overhead_run.Way(cpu_s=[1.0, 1.0, 9.0, 5.0, 5.0, 5.0]), overhead_run.Way(cpu_s=[0.5] * 3 + [4.0] * 3)
    assert overhead_run.beyond(one, two, 2) == 0.75


def test_ops_that_do_nothing_are_measured_on_one_lane_and_on_two():
    figures = empty(Workload(rounds=1, empty_steps=20))
    assert {*figures} == {"us_per_op", "us_per_handover"}
    assert len(list(_idle().ops())) == OPS


@pytest.mark.parametrize("equal", [True, False])
def test_the_table_says_whether_it_compares_alike(equal: bool):
    keys = KEYS | {f"job_{name}" for name in BESIDE}
    figures = dict.fromkeys(keys, 0.5) | {"equal": equal, "ops_per_step": 19}
    assert ("THE WAYS DID NOT TRAIN AND LOG THE SAME" in overhead._table(figures)) is not equal
