"""The benchmark of the step boundary against other looks at the same thing: a profiler, and predictions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from steptrace.check.validation.early import stays_too_early
from steptrace.lang.reference import resolve
from steptrace.lower import lower
from steptrace.passes import run_pipeline
from steptrace.simulate import Cost, Durations, VirtualTrainer, simulate
from steptrace_tools.bench import load
from steptrace_tools.bench.arms import ARMS, LOG_ARMS, program_text
from steptrace_tools.bench.boundary import beside
from steptrace_tools.bench.boundary_calibration import Calibration
from steptrace_tools.bench.boundary_parts import Workload
from steptrace_tools.bench.boundary_run import Arm, Measured, measured
from steptrace_tools.bench.boundary_workers import Called
from steptrace_tools.bench.predicted import ColdStart, cold_start, durations, predictions, with_errors
from steptrace_tools.bench.profiled import compared, idle_in, joined
from steptrace_tools.bench.virtual_boundary import bounded, figures
from steptrace_tools.bench.watched import Seen


def seen(kind: str, step: int, index: int, start: float, end: float) -> Seen:
    return Seen(kind, step, index, start, start, start, start, start, start, end)


def test_intervals_are_joined_and_what_is_left_is_idle():
    busy = joined([(5.0, 6.0), (0.0, 1.0), (0.5, 2.0), (6.0, 7.0)])
    assert busy == [(0.0, 2.0), (5.0, 7.0)]
    assert idle_in(busy, 1.0, 6.0) == 3.0
    assert idle_in(busy, 5.5, 9.0) == 2.0
    assert idle_in([], 1.0, 2.0) == 1.0


def one_run() -> list[Seen]:
    """Steps of 1 s: two micro-batches, an update of 20 ms, 50 ms of nothing before it, and 40 ms behind it."""
    made = []
    for step in range(4):
        at = float(step)
        made += [seen("fwd_bwd", step, 0, at, at + 0.4), seen("fwd_bwd", step, 1, at + 0.4, at + 0.89)]
        made.append(seen("update", step, -1, at + 0.94, at + 0.96))
    return made


def test_two_looks_at_the_same_gaps_agree():
    run = one_run()
    found = compared(run, joined([(one.start, one.end - 0.001) for one in run]), 0)
    assert found["watcher_ms"] == pytest.approx(90)
    assert found["profiler_ms"] == pytest.approx(92)  # of two spans, the update and what is in front of it
    assert found["agree"]


@pytest.mark.parametrize("lost", ["update", "half of each"])
def test_control_a_watcher_that_loses_spans_disagrees(lost: str):
    run = one_run()
    busy = joined([(one.start, one.end) for one in run])
    if lost == "update":
        less = [one for one in run if one.kind != "update"]
    else:
        less = [replace(one, start=(one.start + one.end) / 2) for one in run]
    assert compared(run, busy, 0)["agree"]
    assert not compared(less, busy, 0)["agree"]


SMALL = Workload(megabytes=1.0, micro_batches=2, rows=16, dim=64, host_ms=15.0, steps=8, rounds=1)


@pytest.mark.slow
def test_the_profiler_sees_the_gaps_that_the_watcher_sees():
    """A thread that has to wait for a processor sees ends late, so one run of several that is undisturbed is enough."""
    for _ in range(3):
        checks = measured(SMALL, "inline", profile_check=True).checks
        assert checks.keys() == {"base", "staged-before"}
        assert checks["base"]["profiler_ms"] > 20  # a reward and a log of 15 ms each
        if all(found["agree"] for found in checks.values()):
            return
    pytest.fail(str(checks))


FOUND = Calibration(
    stage_s=0.030,
    staged_issue_s=0.001,
    staged_way_s=0.002,
    whole_s=0.011,
    wake_s=0.003,
    confirm_s=0.004,
    set_aside_s=0.0,
    fetch_s=0.0,
    copy_s=0.0005,
    dispatch_s=0.001,
)
"""By hand, in front of the update: the device waits 3 ms for it, 4 for the answer, then for the call."""

PHASES = {"dispatch": 0.010, "reward": 0.020, "pack": 0.015, "sync_weights": 0.005, "log": 0.020}


def base(cold: float = 0.0) -> tuple[Arm, list[list[Called]]]:
    """Six micro-batches of 100 ms and an update of 8; metrics are there 1 ms behind it; a call takes 6 and 9 ms.

    On a cold device the first one takes longer.
    """
    whole = 0.6 + cold + 0.008 + 0.001 + sum(PHASES.values()) + 0.006 + 0.009
    made, calls = [], []
    for step in range(4):
        at = step * whole
        called, warm = at - 0.015, at + cold
        made += [
            Seen("fwd_bwd", step, 0, called, at, at, at, at, at, warm + 0.1),
            *(seen("fwd_bwd", step, index, warm + 0.1 * index, warm + 0.1 * (index + 1)) for index in range(1, 6)),
            seen("update", step, -1, warm + 0.6, warm + 0.608),
        ]
        calls.append(Called("fwd_bwd", step, 0, called, called + 0.006))
        calls.append(Called("get_metrics", -1, -1, at + 0.55, warm + 0.609))
    idle = 1e3 * (whole - cold - 0.608)
    arm = Arm([idle] * 3, [1e3 * whole] * 3, 0.3, whole, {("p", "c")}, [PHASES] * 4, [made], [0.001], [0])
    return arm, [calls]


def predicted(found: Calibration = FOUND, cold: float = 0.0) -> dict[str, dict[str, float]]:
    arm, calls = base(cold)
    return predictions(durations(arm, calls, found, 6), found, cold_start(arm), 6)


@pytest.mark.parametrize("cold", [0.0, 0.02])
def test_the_base_arm_is_predicted_from_its_own_figures(cold: float):
    arm, _ = base(cold)
    assert predicted(cold=cold)["base"]["idle_ms_median"] == pytest.approx(arm.idle_ms[0])
    assert predicted(cold=cold)["base"]["step_ms_median"] == pytest.approx(arm.step_ms[0])


def test_a_device_that_is_hardly_idle_is_hardly_cold():
    arm, _ = base(0.02)
    staged, idle = predicted(cold=0.02)["staged-before"], 1 + 2 + 4  # between the update and the staged call
    assert staged["step_ms_median"] == pytest.approx(600 + 8 + 3 + idle + 20 * idle / arm.idle_ms[0])
    assert ColdStart(0.02, 0.1).behind(0.5) == 0.02


def test_the_other_arms_are_predicted_as_by_hand():
    made = predicted()
    assert made["pipelined"]["idle_ms_median"] == pytest.approx(0.5 + 1)  # shipped meanwhile, it comes behind the copy
    assert made["staged-before"]["idle_ms_median"] == pytest.approx(3 + 4 + 1 + 2)
    assert made["staged-after"]["idle_ms_median"] == pytest.approx(1 + 2)
    assert made["staged-before"]["step_ms_median"] == pytest.approx(600 + 8 + 10)


def test_the_next_call_comes_behind_the_copy_of_the_weights_however_long_that_takes():
    made = predicted(replace(FOUND, copy_s=0.02))
    assert made["pipelined"]["idle_ms_median"] == pytest.approx(20 + 1)
    assert made["staged-before"]["idle_ms_median"] == pytest.approx(3 + 4 + 20 + 1)
    assert made["base"] == predicted()["base"]  # it copies and sends at once


def test_control_a_stage_that_takes_longer_than_its_micro_batch_is_not_hidden():
    slow = predicted(replace(FOUND, stage_s=0.25))["staged-before"]["idle_ms_median"]
    assert slow >= predicted()["pipelined"]["idle_ms_median"]


def test_control_a_prediction_that_is_off_is_said_to_be():
    made = predicted()
    near = with_errors(made, made)
    assert all(found["idle_within"] and found["step_within"] for found in near.values())
    off = {**made, "pipelined": {"idle_ms_median": 30.0, "step_ms_median": 400.0}}
    found = with_errors(made, off)["pipelined"]
    assert (found["idle_within"], found["step_within"]) == (False, False)
    assert found["idle_error_ms"] == pytest.approx(made["pipelined"]["idle_ms_median"] - 30)


def test_what_is_predicted_comes_with_its_errors_and_costs():
    arm, calls = base()
    made = Measured(dict.fromkeys(ARMS, arm), calls=calls, calibration=FOUND)
    work = Workload(megabytes=1.0, micro_batches=6)
    found = beside(made, work)
    assert found["predicted"].keys() == ARMS.keys()
    assert found["predicted"]["base"]["idle_within"]
    assert found["costs_ms"]["fwd_bwd"] == pytest.approx([6, 100, 9])
    assert "predicted" not in beside(made, replace(work, replay=True))


def step_ms(pipeline: str, log_s: float) -> float:
    schedule = run_pipeline(resolve(program_text()), pipeline).schedule
    costs = {"fwd_bwd": Cost(0.01, 0.08), "update": Cost(0.0, 0.004), "log": Cost(log_s)}
    plan = lower(schedule.program, source=schedule.source)
    run = simulate(plan, Durations(costs), micro_batches=4, steps=8, trainer=bounded(VirtualTrainer(), 2))
    return figures(run)["step_ms_median"]


def test_a_log_longer_than_a_micro_batch_makes_the_step_longer_only_on_the_trainers_lane():
    inline, own = LOG_ARMS["log-inline"], LOG_ARMS["log-own-lane"]
    assert step_ms(own, 0.16) == pytest.approx(step_ms(own, 0.0))
    assert step_ms(inline, 0.16) > step_ms(inline, 0.0) + 50


def test_control_a_log_on_its_own_lane_that_frees_nothing_holds_up_the_step():
    assert (
        step_ms(ARMS["staged-before"] + ",place{op=log,lane=io}", 0.16) > step_ms(LOG_ARMS["log-own-lane"], 0.16) + 50
    )


@pytest.mark.parametrize("pipeline", [*ARMS.values(), *LOG_ARMS.values()])
def test_no_arm_leaves_anything_behind_that_the_program_would_not(pipeline: str):
    found = run_pipeline(resolve(program_text()), pipeline)
    assert [remark for remark in found.remarks if remark.kind == "missed"] == []
    assert stays_too_early(found.schedule.program, found.schedule.source) is None


def test_control_a_log_that_may_not_fail_late_keeps_its_callbacks_waiting():
    strict = program_text().replace(",logs=may_fail_late", "")
    found = run_pipeline(resolve(strict), LOG_ARMS["log-own-lane"])
    (missed,) = [remark for remark in found.remarks if remark.kind == "missed"]
    assert "log@0 fails" in str(missed)
    assert missed.code == "ST254"
    assert {op.lane for op in found.schedule.program.ops() if op.kind == "log"} == {"host"}


@pytest.mark.parametrize(("shares", "looks"), [([0.5, 0.2, 0.01, 0.9], 3), ([None], 1)])
def test_a_quiet_machine_is_waited_for(shares: list[float | None], looks: int, monkeypatch: pytest.MonkeyPatch):
    left = iter(shares)
    taken = []

    def share(self: load.ForeignLoad) -> float | None:
        taken.append(next(left))
        return taken[-1]

    monkeypatch.setattr(load.ForeignLoad, "share", share)
    assert load.wait_until_quiet(60.0, look_s=0.0) == taken[-1]
    assert len(taken) == looks


def test_control_a_machine_that_stays_busy_is_waited_for_no_longer_than_asked(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(load.ForeignLoad, "share", lambda self: 0.7)
    assert load.wait_until_quiet(0.0) == 0.7
