"""Polls, flags and the latch in virtual time."""

from __future__ import annotations

import pytest
from virtual_plans import COSTS, PLAIN, plan_of

from steptrace.simulate import Cost, Durations, simulate


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
