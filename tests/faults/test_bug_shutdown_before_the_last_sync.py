"""A run whose last sync is still under way is over when that has arrived, and not before."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

from fakes import HashRollout
from matrix_runs import no_lane_is_left

import steptrace
from steptrace.run import executor
from steptrace.testing.hash_parts import HashTrainer, StagingTrainer, hash_parts

PROGRAM = 'grpo{staleness=1, prompts=4, samples=2, saves="may_fail_late", save_every=2}'
STEPS = 4


class SlowReceiver(HashRollout):
    """Takes its time for the last version; knows whether it was cut off."""

    def apply_weights(self, weights, version):
        if version == STEPS:
            time.sleep(0.3)
        super().apply_weights(weights, version)


class SlowWriter(StagingTrainer):
    """Takes its time for the last checkpoint."""

    def write_checkpoint(self, snapshot, directory):
        time.sleep(0.3)
        super().write_checkpoint(snapshot, directory)


def run(tmp_path, rollout=None, trainer=None):
    bound = hash_parts(rollout=rollout or HashRollout(), trainer=trainer or StagingTrainer())
    options = {"steps": STEPS, "pipeline": "async-everything", "stall_s": 60.0, "out": tmp_path}
    return steptrace.run(PROGRAM, bound, **options)


def test_the_last_weights_have_arrived_when_the_run_is_over(tmp_path, quick_trees):
    rollout = SlowReceiver()
    run(tmp_path, rollout=rollout)
    assert rollout.given == [*range(STEPS + 1)]
    assert no_lane_is_left()


def test_the_last_checkpoint_is_on_disk_when_the_run_is_over(tmp_path, quick_trees):
    made = run(tmp_path, trainer=SlowWriter())
    again = HashTrainer()
    newest = sorted((tmp_path / "checkpoints").glob("0*"))[-1]
    again.restore_checkpoint(newest / "trainer")
    assert again.applied == made.steps == STEPS


class WaitsReceiver(HashRollout):
    """Takes the last version once it is told to."""

    def __init__(self):
        super().__init__()
        self.go = threading.Event()

    def apply_weights(self, weights, version):
        if version == STEPS:
            self.go.wait(30.0)
        super().apply_weights(weights, version)


def test_control_a_run_that_does_not_wait_for_its_lanes_is_over_too_early(monkeypatch):
    started, rollout = [], WaitsReceiver()
    monkeypatch.setattr(executor, "_joined", lambda threads, progress: started.extend(threads))
    try:
        with suppress(Exception):  # what is missing first depends on how fast the lanes are
            run(None, rollout=rollout)
        assert STEPS not in rollout.given
    finally:
        rollout.go.set()
        for thread in started:
            thread.join()
    assert started
