"""An error in the rollout, the reward, the metrics or the log ends the run, whoever waits for what was to come."""

from __future__ import annotations

import pytest
from fakes import HashRollout
from matrix_runs import no_lane_is_left

import steptrace
from steptrace.diag.running import StalledRunError
from steptrace.run import lane
from steptrace.testing.faults import Fault, inject
from steptrace.testing.hash_parts import hash_parts

PROGRAM = "grpo{staleness=1, prompts=4, samples=2}"
STAGES = {"": "get_metrics", "pipelined-boundary": "fetch_metrics", "async-everything": "fetch_metrics"}


def run(pipeline, *around, stall_s=60.0, **other):
    return steptrace.run(
        PROGRAM, hash_parts(**other), steps=5, pipeline=pipeline, stall_s=stall_s, around=around, stage_latch_s=0
    )


@pytest.mark.parametrize("pipeline", STAGES)
@pytest.mark.parametrize("stage", ["dispatch", "reward", "metrics", "log"])
def test_the_run_ends_with_the_original_error_its_step_and_its_op(pipeline, stage):
    op, error = STAGES[pipeline] if stage == "metrics" else stage, ZeroDivisionError("broken stage")
    with pytest.raises(ZeroDivisionError) as info:
        run(pipeline, inject(Fault(op, 2, error=error)))
    assert info.value is error
    assert f"in `{op}` of step 2, lane " in error.__notes__[0]
    assert no_lane_is_left()


def test_a_loss_that_is_declared_to_be_one_is_made_up_for():
    """A rollout may lose groups where the program draws more than it trains: the run goes on without them."""

    class Loses(HashRollout):
        def generate(self, prompts, samples, **how):
            return [None, *super().generate(prompts, samples, **how)[1:]]

    @steptrace.program
    def spare(step):
        step.dispatch(prompts=3, samples=2, extra=1)
        for mb in step.micro_batches(step.pack(step.advantages(step.reward(step.take())))):
            step.fwd_bwd(mb)
        step.update()
        metrics = step.get_metrics()
        step.sync_weights()
        step.commit()
        step.log(metrics)
        step.on_step_end(reads=["metrics"])

    made = steptrace.run(spare, hash_parts(rollout=Loses()), steps=3)
    assert [record["groups"] for record in made.records] == [3.0, 3.0, 3.0]


def test_control_an_error_that_stays_on_its_lane_is_no_error_of_the_run(monkeypatch):
    """Without a way for failures to the other lanes, whoever waits learns of it by the watchdog only."""
    real = lane.LaneRunner.node

    def node(self, node, step):
        if self.name == "host":
            return real(self, node, step)
        try:
            self.nodes((node,), step, self._frames.at(step))
        except ZeroDivisionError:
            return None

    monkeypatch.setattr(lane.LaneRunner, "node", node)
    faults = inject(Fault("reward", 2, error=ZeroDivisionError("broken stage")))
    with pytest.raises((StalledRunError, TypeError)):
        run("pipelined-boundary", faults, stall_s=0.5)
    assert faults.met
