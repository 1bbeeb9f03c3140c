"""A resumed run seeks: it generates nothing again, counts from its manifest, and knows when it is at its end."""

from __future__ import annotations

import pickle

import pytest
from fakes import HashRollout, HashTrainer, parts

import steptrace
from steptrace.diag.running import UnpublishedWeightsError
from steptrace.programs.grpo import grpo
from steptrace.run import manifest
from steptrace.run.data.cursor import DataCursor, Draws
from steptrace.run.store import checkpoints

PROGRAM = grpo.trace(prompts=2, samples=2, save_every=5)


@pytest.fixture(autouse=True)
def quick_trees(monkeypatch):
    """Published weights are pickled, which is faster."""

    def save(directory, tree):
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.write_bytes(pickle.dumps(tree))

    monkeypatch.setattr(manifest, "save_tree", save)
    monkeypatch.setattr(manifest, "restore_tree", lambda directory, like: pickle.loads(directory.read_bytes()))


class Counted(HashRollout):
    """Counts the prompts it was asked for."""

    def __init__(self):
        super().__init__()
        self.prompts = 0

    def generate(self, prompts, samples, *, version, key):
        self.prompts += len(prompts)
        return super().generate(prompts, samples, version=version, key=key)


def run(out, steps, *, resume=False):
    rollout, trainer = Counted(), HashTrainer()
    result = steptrace.run(PROGRAM, parts(rollout=rollout, trainer=trainer), steps=steps, out=out, resume=resume)
    return result, rollout, trainer


def test_resuming_at_step_50_dispatches_the_steps_that_are_left(tmp_path):
    run(tmp_path / "out", 50)
    result, rollout, _ = run(tmp_path / "out", 53, resume=True)
    assert (result.first_step, result.steps) == (50, 53)
    assert rollout.prompts == 3 * 2
    whole, from_the_start, _ = run(tmp_path / "whole", 53)
    assert result.params_digest == whole.params_digest
    assert from_the_start.prompts == 53 * 2  # what going through all of it would have asked for


def test_control_a_cursor_that_starts_over_trains_other_groups(tmp_path, monkeypatch):
    run(tmp_path / "out", 10)
    monkeypatch.setattr(Draws, "restore", lambda self, state: DataCursor())
    monkeypatch.setattr(manifest, "_check_prompts", lambda *_: None)
    result, _, _ = run(tmp_path / "out", 13, resume=True)
    assert result.trained_groups_digest != run(tmp_path / "whole", 13)[0].trained_groups_digest


@pytest.mark.parametrize("at", [5, 10])
def test_ten_steps_in_two_parts_are_ten_steps(tmp_path, at):
    whole, *_ = run(tmp_path / "whole", 10)
    run(tmp_path / "out", at)
    result, rollout, trainer = run(tmp_path / "out", 10, resume=True)
    assert (result.first_step, result.steps) == (at, 10)
    assert rollout.prompts == (10 - at) * 2
    assert trainer.calls.count("update") == 10 - at
    assert result.params_digest == whole.params_digest
    assert result.calls_digest == whole.calls_digest
    assert manifest_of(tmp_path / "out")["step"] == 9


def test_the_last_checkpoint_is_there_where_the_cadence_does_not_reach_it(tmp_path):
    run(tmp_path / "out", 5)
    run(tmp_path / "out", 8, resume=True)
    assert manifest_of(tmp_path / "out")["step"] == 7


def manifest_of(out):
    return manifest.read_manifest(checkpoints(out)[-1])


def test_control_steps_that_are_counted_from_another_base_are_found(tmp_path, monkeypatch):
    """A manifest whose step is one less than that of the weights it holds."""
    run(tmp_path / "out", 5)
    real = manifest.read_manifest
    monkeypatch.setattr(manifest, "read_manifest", lambda place: real(place) | {"step": 3, "committed": 4})
    with pytest.raises(UnpublishedWeightsError, match="no sync of step 3 has published weights"):
        run(tmp_path / "out", 10, resume=True)
