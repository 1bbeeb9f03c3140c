"""When staging is switched off for the rest of a run, and parts whose state a schedule would run ahead of."""

from __future__ import annotations

import pytest
from lane_parts import HashRollout, PatientTrainer, lane_bind, made_by

import steptrace
from steptrace.diag.running import StateAheadError

PROGRAM = "grpo{prompts=4, samples=3, staleness=1, save_every=2}"


class Timed(PatientTrainer):
    """Tells a device wait of its own: of the stage, or of the update that is held back."""

    def __init__(self, wait_s: float, *, stage: bool) -> None:
        super().__init__(steps=5)
        self.wait_s, self.at_stage = wait_s, stage
        self.stages = 0
        self.early = 0  # of the first step, which is staged only if it is packed before the host begins

    def stage_fwd_bwd(self, micro_batch):
        self.stages += 1
        self.early += micro_batch.step == 0
        request = super().stage_fwd_bwd(micro_batch)
        return {"request": request, "device_wait_s": self.wait_s} if self.at_stage else request

    def fwd_bwd_staged(self, request, **how):
        return super().fwd_bwd_staged(request["request"] if self.at_stage else request, **how)

    def apply_deferred_update(self):
        super().apply_deferred_update()
        return {"device_wait_s": None if self.at_stage else self.wait_s}


@pytest.mark.parametrize("stage", [True, False])
def test_one_stage_that_hid_nothing_is_the_last(stage):
    pipeline = "pipelined-boundary-staged-after" if stage else "pipelined-boundary"
    trainer = Timed(1e-5, stage=stage)
    result = steptrace.run(PROGRAM, lane_bind(trainer), steps=5, pipeline=pipeline, stage_latch_s=1e-3)
    assert trainer.stages - trainer.early == 1
    assert trainer.ran_staged == trainer.stages  # what was shipped is trained, once
    assert any(remark.startswith("staging is off since step") for remark in result.remarks)
    assert result.params_digest == made_by(PROGRAM, lane_bind(), steps=5).params


@pytest.mark.parametrize("stage", [True, False])
def test_control_a_device_that_was_busy_keeps_staging_on(stage):
    pipeline = "pipelined-boundary-staged-after" if stage else "pipelined-boundary"
    trainer = Timed(5e-3, stage=stage)
    steptrace.run(PROGRAM, lane_bind(trainer), steps=5, pipeline=pipeline, stage_latch_s=1e-3)
    assert trainer.stages - trainer.early == 4


def test_a_threshold_of_0_stages_always():
    trainer = Timed(0.0, stage=False)
    steptrace.run(PROGRAM, lane_bind(trainer), steps=5, pipeline="pipelined-boundary", stage_latch_s=0)
    assert trainer.stages - trainer.early == 4


class Counting(HashRollout):
    """A rollout with a state that checkpoints hold."""

    def save_checkpoint(self, directory):
        directory.mkdir(parents=True)

    def restore_checkpoint(self, directory):
        """Nothing."""


def test_a_part_with_a_state_is_not_called_ahead_of_checkpoints(tmp_path):
    with pytest.raises(StateAheadError, match=r"`rollout` has a state .* `dispatch` calls it 1 step ahead") as info:
        made_by(PROGRAM, lane_bind(rollout=Counting()), steps=2, pipeline="pipelined-boundary", out=tmp_path)
    assert "step.dispatch" in info.value.loc.source()


@pytest.mark.parametrize("options", [{"pipeline": "defer-metrics"}, {"pipeline": ""}])
def test_control_it_may_be_called_in_its_own_step(tmp_path, options):
    assert made_by(PROGRAM, lane_bind(rollout=Counting()), steps=2, out=tmp_path, **options).steps == 2


def test_control_without_checkpoints_it_may_be_called_ahead():
    assert made_by(PROGRAM, lane_bind(rollout=Counting()), steps=2, pipeline="pipelined-boundary").steps == 2


class InOrder(PatientTrainer):
    """A trainer that notes the order of its stages and updates."""

    def __init__(self, *, deferring: bool) -> None:
        super().__init__(steps=5)
        self.deferring = deferring
        self.order: list[str] = []

    def stage_fwd_bwd(self, micro_batch):
        self.order.append("stage")
        return super().stage_fwd_bwd(micro_batch)

    def update(self):
        self.order.append("update")
        super().update()


def borders(trainer: InOrder) -> str:
    """The order from the first update or its stage on: the first step's own stage may be there, or not."""
    text = "".join(word[0] for word in trainer.order)
    return text[1:] if text.count("s") == 5 else text


def test_a_trainer_that_holds_no_update_back_gets_its_stage_behind_it():
    trainer = InOrder(deferring=False)
    result = steptrace.run(PROGRAM, lane_bind(trainer), steps=5, pipeline="pipelined-boundary")
    assert borders(trainer) == "ususususu"
    assert result.params_digest == made_by(PROGRAM, lane_bind(), steps=5).params
    assert "`stage_fwd_bwd` stands behind the update: the trainer has no `stage_before_update`" in result.remarks


def test_control_a_trainer_that_does_gets_it_before():
    trainer = InOrder(deferring=True)
    result = steptrace.run(PROGRAM, lane_bind(trainer), steps=5, pipeline="pipelined-boundary")
    assert borders(trainer) == "susususuu"
    assert not any("behind the update" in remark for remark in result.remarks)
