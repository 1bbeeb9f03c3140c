"""Rules of a step that no order of ops can break: what the trainer does in its calls, and how it shows when it errs.

Each trainer that errs is the control of a rule: its run ends with an error, or trains, saves or stages otherwise than
that of the trainer that keeps it.
"""

from __future__ import annotations

import functools
import json
import time

import pytest
from lane_parts import HashRollout, HashTrainer, PatientTrainer, StagingTrainer, lane_bind, made_by

import steptrace
from steptrace.diag.checkpoint import OtherStampError
from steptrace.run import executor as executor_module

PROGRAM = 'grpo{prompts=4, samples=3, staleness=1, saves="may_fail_late", save_every=1}'
BOUNDARY, AFTER = "pipelined-boundary", "fuse-update,take-ahead,defer-metrics,stage-after-update"
STEPS = 5


@functools.cache
def plain():
    """What is trained in program order."""
    return made_by(PROGRAM, lane_bind(), steps=STEPS)


def run(trainer, pipeline=BOUNDARY, **options):
    """A run on that trainer."""
    return steptrace.run(PROGRAM, lane_bind(trainer), steps=STEPS, pipeline=pipeline, stall_s=30.0, **options)


class Replaying(PatientTrainer):
    """Drops tokens of each step's last micro-batch, so its update runs that once more, from the gradients before it."""

    last = before = None

    def __init__(self):
        super().__init__(STEPS)

    def fwd_bwd(self, micro_batch, **how):
        if micro_batch.last:
            self.last, self.before = micro_batch, self.grads
        return super().fwd_bwd(micro_batch, **how)

    def rerun(self):
        """What is run again."""
        return self.last

    def update(self):
        if self.last is not None:
            again, self.last, self.grads = self.rerun(), None, self.before
            HashTrainer.fwd_bwd(self, again)
        super().update()


class ReplayingWhatItHolds(Replaying):
    """Runs again whatever micro-batch it holds: the next step's, once that was shipped."""

    def rerun(self):
        return self.staged[1] if self.staged is not None else self.last


def test_a_rerun_of_the_last_micro_batch_is_trained_once_and_leaves_the_shipped_one_alone():
    trainer = Replaying()
    assert made_by(PROGRAM, lane_bind(trainer), steps=STEPS, pipeline=BOUNDARY) == plain()
    assert trainer.ran_staged > 1


def test_control_a_rerun_that_reads_the_shipped_micro_batch_trains_something_else():
    assert run(ReplayingWhatItHolds()).params_digest != plain().params
    unshipped = run(ReplayingWhatItHolds(), "pipelined-boundary-unstaged")
    assert unshipped.params_digest == plain().params


class StampsEarly(StagingTrainer):
    """Stamps checkpoints with the step it had when the last training call returned: before a held update."""

    stamp = 0

    def fwd_bwd(self, micro_batch, **how):
        made = super().fwd_bwd(micro_batch, **how)
        self.stamp = self.applied
        return made

    def save_checkpoint(self, directory):
        super().save_checkpoint(directory)
        (directory / "applied.json").write_text(json.dumps(self.stamp))


def resumed(out, trainer, pipeline):
    """What a run of three steps has trained that another process goes on with from its last checkpoint."""
    made_by(PROGRAM, lane_bind(trainer()), steps=3, pipeline=pipeline, out=out)
    again = trainer()
    made = made_by(PROGRAM, lane_bind(again), steps=STEPS, pipeline=pipeline, out=out, resume=True)
    return made.params, made.groups, again.applied


@pytest.mark.parametrize("pipeline", [BOUNDARY, AFTER])
def test_a_checkpoint_is_stamped_with_the_step_that_its_update_returned(tmp_path, pipeline):
    assert resumed(tmp_path, StagingTrainer, pipeline) == (plain().params, plain().groups, STEPS)


def test_control_a_stamp_of_the_last_calls_return_is_found_when_the_run_is_resumed(tmp_path):
    with pytest.raises(OtherStampError, match=r"at version 2 as restored from .*, and was at version 3 when it saved"):
        resumed(tmp_path, StampsEarly, BOUNDARY)


def test_control_where_the_last_call_makes_the_update_the_two_stamps_are_one(tmp_path):
    assert resumed(tmp_path, StampsEarly, AFTER) == (plain().params, plain().groups, STEPS)


class Waiting(PatientTrainer):
    """The device works 5 ms longer than the last training call takes; a held update waits for it and says so."""

    def __init__(self):
        super().__init__(STEPS)
        self.left_s, self.stages = 0.0, []

    def fwd_bwd(self, micro_batch, **how):
        made = super().fwd_bwd(micro_batch, **how)
        self.left_s = 5e-3 if micro_batch.last else self.left_s
        return made

    def stage_fwd_bwd(self, micro_batch):
        self.stages.append(micro_batch.step)
        return super().stage_fwd_bwd(micro_batch)

    def wait_for_device(self):
        """The seconds that the device still works."""
        waited, self.left_s = self.left_s, 0.0
        return waited

    def update(self):
        self.wait_for_device()  # it reads whether the last micro-batch dropped tokens
        super().update()

    def apply_deferred_update(self):
        waited = self.wait_for_device()
        super().apply_deferred_update()
        return {"device_wait_s": waited}


class MeasuresBehindTheUpdate(Waiting):
    """Makes the update first, which waits for the device by itself, and measures then."""

    def apply_deferred_update(self):
        PatientTrainer.apply_deferred_update(self)
        return {"device_wait_s": self.wait_for_device()}


def test_the_wait_for_the_device_is_measured_in_front_of_the_update():
    trainer = Waiting()
    result = run(trainer, stage_latch_s=1e-3)
    assert max(trainer.stages) > 1
    assert not [remark for remark in result.remarks if "staging is off" in remark]


def test_control_measured_behind_the_update_staging_switches_itself_off_though_it_hid_something():
    trainer = MeasuresBehindTheUpdate()
    result = run(trainer, stage_latch_s=1e-3)
    assert len([step for step in trainer.stages if step]) == 1
    assert any("the device had 0 ms left to do" in remark for remark in result.remarks)


class Forgetting(StagingTrainer):
    """Takes a held update for made."""

    def apply_deferred_update(self):
        self.held = False


def test_control_an_update_that_the_trainer_never_makes_shows_in_what_is_trained():
    trainer = Forgetting()
    assert run(trainer).params_digest != plain().params
    assert trainer.applied == 0


def test_control_an_update_that_the_run_never_asks_for_is_refused_by_the_trainer(monkeypatch):
    verbs = {**executor_module.PART_VERBS, "apply_deferred_update": lambda run, at: ()}
    monkeypatch.setattr(executor_module, "PART_VERBS", verbs)
    with pytest.raises(AssertionError) as info:
        run(StagingTrainer())
    assert "in `start_metrics` of step 0, lane host" in info.value.__notes__[0]


def test_the_end_of_a_run_waits_for_the_last_sync_round():
    class Slow(HashRollout):
        def apply_weights(self, weights, version):
            time.sleep(0.05)
            super().apply_weights(weights, version)

    seen = []

    class Ends:
        def on_step_end(self, step, metrics):
            seen.append(len(rollout.given))

    rollout = Slow()
    bound = lane_bind(StagingTrainer(), rollout=rollout, callbacks=Ends())
    steptrace.run(PROGRAM, bound, steps=STEPS, pipeline="async-weight-sync", stall_s=30.0)
    assert seen[-1] == STEPS  # the initial weights and those of all steps but the last, which were on their way
    assert rollout.given == [*range(STEPS + 1)]


class Listing(PatientTrainer):
    """Keeps how the calls that close a step came, and what came between them."""

    def __init__(self):
        super().__init__(STEPS)
        self.told = []

    def fwd_bwd(self, micro_batch, **how):
        if micro_batch.last:
            self.told.append((micro_batch.step, how))
        return super().fwd_bwd(micro_batch, **how)

    def stage_fwd_bwd(self, micro_batch):
        self.told.append((micro_batch.step - 1, "stage"))
        return super().stage_fwd_bwd(micro_batch)

    def start_metrics(self):
        self.told.append((self.applied - 1, "metrics"))
        return super().start_metrics()


def test_with_the_update_in_the_last_call_the_stage_is_what_waits_for_it():
    trainer = Listing()
    run(trainer, AFTER)
    closing = {"apply_optimizer": True, "wait_for_update": False}
    told = [[what for at, what in trainer.told if at == step] for step in range(STEPS)]
    assert len([step for step in told if "stage" in step]) > 1
    for step in told:
        assert [what for what in step if what != "stage"] == [closing, "metrics"]
        assert "stage" not in step or step.index("stage") == 1


@pytest.mark.parametrize("error", [ConnectionError("lost"), TimeoutError("late")])
def test_log_probs_that_are_lost_on_the_way_end_staging_and_not_the_run(error):
    trainer = PatientTrainer(STEPS)
    trainer.patience_s = 0.5
    failing(trainer.reference, error)
    result = run(trainer)
    assert (result.params_digest, result.calls_digest) == (plain().params, plain().calls)
    assert trainer.ran_staged <= 2  # of steps 0 and 1: nothing is shipped from then on
    assert any("staging is off since step 2: the reference's log-probs" in remark for remark in result.remarks)


@pytest.mark.parametrize(
    ("pipeline", "error", "times"),
    [
        (BOUNDARY, ValueError("broken"), 1),
        (BOUNDARY, ConnectionError("lost"), 2),
        ("pipelined-boundary-unstaged", ConnectionError("lost"), 1),
        ("", ConnectionError("lost"), 1),
    ],
)
def test_control_a_reference_that_fails_otherwise_or_again_ends_the_run(pipeline, error, times):
    trainer = PatientTrainer(STEPS)
    trainer.patience_s = 0.5
    failing(trainer.reference, error, times)
    with pytest.raises(type(error)) as info:
        run(trainer, pipeline)
    assert info.value is error


def failing(reference, error, times=1):
    """Let the reference fail on the first micro-batch of step 2."""
    real, failed = reference.logps, []

    def logps(micro_batch):
        if (micro_batch.step, micro_batch.index) == (2, 0) and len(failed) < times:
            failed.append(micro_batch)
            raise error
        return real(micro_batch)

    reference.logps = logps
