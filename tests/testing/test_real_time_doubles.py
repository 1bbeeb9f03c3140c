"""Doubles of trainers bound to real runs: under every pipeline they train what they train in program order."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from fakes import parts

import steptrace
from steptrace.run.data.packing import Packer
from steptrace.simulate import Cost, VirtualTrainer
from steptrace.testing import (
    DeviceWaitTrainer,
    FailedStageTrainer,
    LostStageTrainer,
    OlderTrainer,
    RealTimeTrainer,
    ReplayTrainer,
    TokenWaitTrainer,
    UpdatesAnywayTrainer,
)

GRPO = "grpo{staleness=1,prompts=6,samples=2,save_every=2}"
PIPES = ("pipelined-boundary", "pipelined-boundary-staged-after", "async-everything", "fuse-update")
KINDS = {
    "plain": VirtualTrainer,
    "token wait": TokenWaitTrainer,
    "device wait": DeviceWaitTrainer,
    "older image": OlderTrainer,
    "updates anyway": UpdatesAnywayTrainer,
    "replay": lambda: ReplayTrainer("every"),
    "lost stage": LostStageTrainer,
}


def run_of(trainer: RealTimeTrainer, pipeline: str = "", **how):
    packer = Packer(rows=1, length=32, pad_id=0)
    return steptrace.run(GRPO, parts(trainer=trainer, packer=packer), **{"steps": 4, "pipeline": pipeline, **how})


@pytest.mark.parametrize("kind", KINDS)
def test_a_bound_double_trains_the_same_under_every_pipeline(kind: str):
    base = run_of(RealTimeTrainer(KINDS[kind]()))
    for pipeline in PIPES:
        trainer = RealTimeTrainer(KINDS[kind](), {"fwd_bwd": Cost(work_s=0.002)})
        run = run_of(trainer, pipeline)
        assert (run.params_digest, run.calls_digest) == (base.params_digest, base.calls_digest)


def test_control_another_order_of_micro_batches_trains_something_else():
    class Swaps(VirtualTrainer):
        def make_update(self, clock, cost, what=""):
            self._sums.reverse()
            return super().make_update(clock, cost, what)

    assert run_of(RealTimeTrainer(Swaps())).params_digest != run_of(RealTimeTrainer(VirtualTrainer())).params_digest


def test_it_has_the_verbs_that_its_double_has():
    older, plain = RealTimeTrainer(OlderTrainer()), RealTimeTrainer(VirtualTrainer())
    for verb in ("stage_fwd_bwd", "fwd_bwd_staged", "apply_deferred_update", "copy_weights", "write_checkpoint"):
        assert hasattr(plain, verb)
        assert not hasattr(older, verb)
    assert hasattr(older, "fwd_bwd")


def test_what_the_device_has_left_is_measured():
    trainer = RealTimeTrainer(VirtualTrainer(), {"fwd_bwd": Cost(work_s=0.3)})
    first, second = (SimpleNamespace(step=0, index=index, last=False) for index in (0, 1))
    trainer.fwd_bwd(first)
    told = trainer.stage_fwd_bwd(second)
    assert told["device_wait_s"] > 0
    trainer.fwd_bwd_staged(told)
    trainer.wait_for_device()
    assert trainer.stage_fwd_bwd(SimpleNamespace(step=1, index=0, last=False))["device_wait_s"] == 0
    assert trainer.called.count("stage_fwd_bwd") == 2


def test_an_error_of_a_stage_that_arrived_is_the_runs():
    trainer = RealTimeTrainer(FailedStageTrainer(0), {"fwd_bwd": Cost(issue_s=0.03, work_s=0.03)})
    with pytest.raises(RuntimeError, match="error state"):
        run_of(trainer, "pipelined-boundary", steps=40)  # some step's first micro-batch is packed in time


def test_its_checkpoints_are_gone_on_from(tmp_path: Path):
    whole = run_of(RealTimeTrainer(VirtualTrainer()), out=tmp_path / "whole")
    run_of(RealTimeTrainer(VirtualTrainer()), steps=2, out=tmp_path / "half")
    resumed = run_of(RealTimeTrainer(VirtualTrainer()), out=tmp_path / "half", resume=True)
    assert resumed.params_digest == whole.params_digest
