"""Polls, flags and the latch in virtual time."""

from __future__ import annotations

import pytest
from virtual_plans import COSTS, PLAIN, plan_of

from steptrace.simulate import Cost, Durations, Run, VirtualTrainer, simulate
from steptrace.testing.doubles import DeviceWaitTrainer, LostStageTrainer, OlderTrainer


def staged(pack_s: float) -> tuple[int, ...]:
    """The steps whose first micro-batch was staged, when packing takes that long."""
    costs = {"fwd_bwd": Cost(0, 10), "pack": Cost(pack_s)}
    plan = plan_of("pipelined-boundary")
    return simulate(plan, Durations(costs), micro_batches=1, steps=3, latch_s=0.0).stages


def test_what_is_packed_at_the_very_moment_counts_as_there():
    # Nothing but packing and training takes time. Step 0 is there when the run begins, and when packing takes none, so
    # is each next one at the very moment at which the trainer is asked to hold it.
    assert staged(0.0) == (0, 1, 2)
    assert staged(5.0) == ()


def test_control_what_is_packed_a_moment_later_is_sent_whole():
    assert staged(0.001) == ()


def test_a_micro_batch_whose_reference_still_computes_is_not_there():
    costs = {**COSTS, "ref_logps": Cost(0, 1000)}
    run = simulate(plan_of("pipelined-boundary"), Durations(costs), micro_batches=1, steps=3)
    assert run.stages == ()


def test_a_stage_that_hides_nothing_is_the_last_one():
    costs = {**COSTS, "fwd_bwd": Cost(20, 14), "pack": Cost(0)}
    for pipeline in ("pipelined-boundary", "pipelined-boundary-staged-after"):
        run = simulate(plan_of(pipeline), Durations(costs), micro_batches=3, steps=6)
        assert run.stages == (1,)
        assert run.latched is not None
        assert "not hidden" in run.remarks[0]


def test_control_a_stage_that_hides_something_is_not_the_last_one():
    run = simulate(plan_of("pipelined-boundary"), PLAIN, micro_batches=3, steps=6)
    assert run.latched is None
    assert all(wait > 0 for wait in run.device_waits.values())


def test_with_a_threshold_of_0_staging_goes_on():
    costs = {**COSTS, "fwd_bwd": Cost(20, 14), "pack": Cost(0)}
    run = simulate(plan_of("pipelined-boundary"), Durations(costs), micro_batches=3, steps=6, latch_s=0.0)
    assert run.stages == (1, 2, 3, 4, 5)


@pytest.mark.parametrize("period", [1, 2, 3])
def test_what_comes_every_few_steps_comes_then(period: int):
    run = simulate(plan_of("", f"grpo{{save_every={period}}}"), PLAIN, micro_batches=1, steps=7)
    assert [event.step for event in run.of("save_checkpoint")] == list(range(period - 1, 7, period))


def test_a_trainer_that_holds_no_update_back_gets_its_stage_behind_it():
    """It waits for the device where its micro-batch is in place: in front of the update that would be for nothing."""
    run = simulate(plan_of("pipelined-boundary"), PLAIN, micro_batches=3, steps=6, trainer=DeviceWaitTrainer())
    places = {(event.op, event.step): event.start for event in run.events}
    for step in run.stages[1:]:
        assert places["stage_fwd_bwd", step] >= places["apply_deferred_update", step - 1]
    assert len(run.stages) > 2
    after = simulate(plan_of("pipelined-boundary-staged-after"), PLAIN, micro_batches=3, steps=6)
    assert run.seconds == after.seconds
    assert "stands behind the update" in run.remarks[0]


def test_control_a_trainer_that_does_gets_it_before():
    run = simulate(plan_of("pipelined-boundary"), PLAIN, micro_batches=3, steps=6)
    places = {(event.op, event.step): event.start for event in run.events}
    assert all(places["stage_fwd_bwd", step] < places["apply_deferred_update", step - 1] for step in run.stages[1:])


STAGING = ("pipelined-boundary", "pipelined-boundary-staged-after")


def seconds(pipeline: str, trainer=None) -> float:
    return simulate(plan_of(pipeline), PLAIN, micro_batches=3, steps=8, trainer=trainer).seconds


@pytest.mark.parametrize("pipeline", STAGING)
def test_without_a_stage_it_is_as_fast_as_the_pipeline_that_stages_nothing(pipeline):
    """A trainer that cannot stage: the whole call is sent as early as there, in front of the log."""
    assert seconds(pipeline, OlderTrainer()) == seconds("pipelined-boundary-unstaged", OlderTrainer())
    assert seconds(pipeline, OlderTrainer()) < seconds("take-ahead{depth=1},defer-metrics", OlderTrainer())


@pytest.mark.parametrize("pipeline", STAGING)
def test_a_lost_stage_is_sent_whole_before_the_bookkeeping(pipeline):
    run = simulate(plan_of(pipeline), PLAIN, micro_batches=3, steps=8, trainer=LostStageTrainer())
    assert run.stages == ()
    early = {event.step for event in run.events if event.op == "fwd_bwd.first.early"}
    assert early >= set(range(2, 8))
    starts = {(event.op, event.step): event.start for event in run.events}
    assert all(starts["fwd_bwd.first.early", step] <= starts["log", step - 1] for step in early if step)


@pytest.mark.parametrize("pipeline", STAGING)
def test_control_what_was_shipped_is_not_sent_whole(pipeline):
    run = simulate(plan_of(pipeline), PLAIN, micro_batches=3, steps=8)
    sent = {event.step for event in run.events if event.op in ("fwd_bwd.first.early", "fwd_bwd.first")}
    assert sent.isdisjoint(run.stages)
    assert sent | {*run.stages} == set(range(8))


@pytest.mark.parametrize("pipeline", STAGING)
def test_control_what_is_packed_late_keeps_its_place(pipeline):
    """A poll waits for nothing, so a slow feed holds up no log."""
    costs = Durations({**COSTS, "reward": Cost(200)})
    run = simulate(plan_of(pipeline), costs, micro_batches=3, steps=5)
    assert {event.step for event in run.events if event.op == "fwd_bwd.first"} == set(range(5))
    assert not [event for event in run.events if event.op == "fwd_bwd.first.early"]


def packed_after(seconds: float, in_flight: int | None = None, pipeline: str = "pipelined-boundary") -> Run:
    """Eight calls of 20 on the device, dispatched at once where nothing bounds them, and data that takes so long."""
    trainer = VirtualTrainer()
    trainer.in_flight = in_flight or trainer.in_flight
    costs = Durations({"fwd_bwd": Cost(1, 20, 4), "pack": Cost(seconds), "update": Cost(0, 2), "log": Cost(3)})
    return simulate(plan_of(pipeline), costs, micro_batches=8, steps=8, trainer=trainer)


@pytest.mark.parametrize("seconds", [5.0, 40.0, 100.0])
def test_calls_in_flight_are_few_so_that_a_stage_finds_what_is_packed_meanwhile(seconds: float):
    """A look comes once the step's last call is made, and that waits until all but two of the others are computed."""
    run = packed_after(seconds)
    assert run.stages[-6:] == (2, 3, 4, 5, 6, 7)
    assert run.seconds <= packed_after(seconds, 32).seconds


def test_control_a_host_that_runs_ahead_looks_too_early():
    assert packed_after(40.0, 32).stages == ()


@pytest.mark.parametrize("pipeline", ["", "pipelined-boundary-unstaged"])
def test_control_few_calls_in_flight_keep_the_device_as_busy(pipeline: str):
    for seconds in (5.0, 100.0):
        assert packed_after(seconds, 2, pipeline).seconds == packed_after(seconds, 32, pipeline).seconds
