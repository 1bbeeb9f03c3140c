"""A mixture of experts that loses tokens, on eight devices: under schedules as in program order, bit for bit."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import jax
import numpy as np
import optax
import pytest
from sharded_runs import Made

from steptrace.run.models.moe import MoeConfig, MoeDecoder
from steptrace.run.rollout import FrozenReference
from steptrace.run.trainer import JaxTrainer, Replay

sys.path.insert(0, str(Path(__file__).parents[1]))
from test_replay_under_schedules import Forcing, loss

pytestmark = pytest.mark.slow

CONFIG = MoeConfig(16, dim=16, layers=1, heads=2, max_length=16, experts=2, top_k=1, capacity_factor=2.0)
STEPS = 6


@functools.cache
def compiled():
    """The parts that compile, made once for all runs."""
    model, axes = MoeDecoder(CONFIG), ("data", "fsdp", "expert", "context")
    mesh = jax.make_mesh((1, 2, 2, 2), axes, axis_types=(jax.sharding.AxisType.Auto,) * 4)
    trainer = JaxTrainer(model, optax.adam(1e-2), loss, replay=Replay(), mesh=mesh)
    return Made(model, trainer, FrozenReference(model.as_dropless()), batch_size=6)


class Whole(Forcing):
    """Loses nothing."""

    def marked(self, micro_batch):
        return micro_batch.with_array("forced", np.zeros((self.rows, self.length), np.float32))


def trained(pipeline: str, packer: type[Forcing] = Forcing):
    """Digests and records of a run with all parts as they were made."""
    program = "grpo{prompts=6, samples=3, staleness=1}"
    return compiled().run(program, pipeline, steps=STEPS, packer=packer(rows=2, length=12), prompts=12)[0]


def test_replay_under_schedules_trains_the_same_on_eight_devices():
    base = trained("")
    counts = [record["micro_batches"] for record in base[1]]
    assert [record["replayed"] for record in base[1]] == [0, 1, 1, counts[3], 0, 1]
    assert [record["skipped"] for record in base[1]] == [0] * STEPS
    assert min(counts) > 1
    assert trained("pipelined-boundary") == base
    assert trained("pipelined-boundary-replayed") == base
    specs = {tuple(leaf.sharding.spec) for leaf in jax.tree.leaves(compiled().trainer._params)}
    assert {spec for spec in specs if "expert" in spec} == {("expert", None, "fsdp")}


def test_what_runs_again_leaves_no_trace():
    (params, _, groups), records = trained("", Whole)  # calls differ by the mark that says what is lost
    assert [record["replayed"] for record in records] == [0] * STEPS
    assert (params, groups) == trained("")[0][::2]


def test_control_what_is_lost_and_never_runs_again_is_seen(monkeypatch):
    whole = trained("", Whole)[0]
    monkeypatch.setattr(JaxTrainer, "_run_again", lambda trainer, attempt: None)
    assert trained("pipelined-boundary")[0][0] != whole[0]
