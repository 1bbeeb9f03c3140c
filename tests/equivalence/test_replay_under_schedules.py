"""Real JAX parts that lose tokens: under schedules as in program order, whichever micro-batches are run again."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from test_real_parts_under_schedules import Letters

import steptrace
from steptrace.lang.records import Prompt
from steptrace.run.data.packing import Packer
from steptrace.run.data.prompts import ListPrompts
from steptrace.run.models.moe import MoeConfig, MoeDecoder
from steptrace.run.rollout import FrozenReference, JaxRollout
from steptrace.run.trainer import GrpoLoss, JaxTrainer, Replay

CONFIG = MoeConfig(16, dim=16, layers=1, heads=2, max_length=16, experts=2, top_k=1, capacity_factor=2.0)
STEPS = 6


def forced(step, index, last):
    """By step: no micro-batch, the first, the last, every one."""
    return (False, index == 0, last, True)[step % 4]


class Forcing(Packer):
    """Says with each micro-batch whether it is to lose tokens."""

    def pack(self, groups, *, step):
        return [self.marked(micro_batch) for micro_batch in super().pack(groups, step=step)]

    def marked(self, micro_batch):
        lost = forced(micro_batch.step, micro_batch.index, micro_batch.last)
        return micro_batch.with_array("forced", np.full((self.rows, self.length), lost, np.float32))


def loss(model, batch):
    """The objective; what lost tokens is no number, so that any trace of it shows."""
    total, count, aux = GrpoLoss(kl_coef=0.1)(model, batch)
    if hasattr(model, "overflow"):
        lost = jnp.any(batch["forced"] > 0)
        model.overflow[...] = model.overflow[...] | lost
        total = total * jnp.where(lost, jnp.nan, 1.0)
    return total, count, aux


class Counting(JaxTrainer):
    """Counts what was staged."""

    staged = 0

    def stage_fwd_bwd(self, micro_batch):
        self.staged += 1
        return super().stage_fwd_bwd(micro_batch)


def trained(pipeline, program="grpo{prompts=6, samples=3, staleness=1}", **settings):
    model = MoeDecoder(CONFIG)
    trainer = Counting(model, optax.adam(1e-2), loss, replay=replace(Replay(), **settings))
    bind = {
        "trainer": trainer,
        "rollout": JaxRollout(model, Letters(), buckets=(4,), max_new_tokens=6, batch_size=6),
        "reference": FrozenReference(model.as_dropless()),
        "reward": lambda prompt, completions: [float(len(set(text.split()))) for text in completions],
        "prompts": ListPrompts([Prompt(f"p:{index}", "abcd"[: 2 + index % 3]) for index in range(12)]),
        "tokenizer": Letters(),
        "packer": Forcing(rows=1, length=24),
    }
    # Nothing takes long here, so that staging would soon be switched off for hiding nothing.
    result = steptrace.run(program, bind, steps=STEPS, pipeline=pipeline, stall_s=240.0, stage_latch_s=0.0)
    digests = (result.params_digest, result.calls_digest, result.trained_groups_digest)
    return (digests, [dict(record) for record in result.records]), trainer


@pytest.mark.slow
def test_every_pipeline_replays_the_same():
    base, _ = trained("")
    counts = [record["micro_batches"] for record in base[1]]
    assert [record["replayed"] for record in base[1]] == [0, 1, 1, counts[3], 0, 1]
    assert [record["skipped"] for record in base[1]] == [0] * STEPS
    assert len(set(counts)) > 1
    for pipeline in ("pipelined-boundary", "pipelined-boundary-staged-after", "async-everything"):
        made, trainer = trained(pipeline)
        assert made == base
        assert trainer.staged or "boundary" not in pipeline


@pytest.mark.slow
def test_a_last_micro_batch_that_never_drops_is_run_once():
    base, _ = trained("", dropless_last=True)
    counts = [record["micro_batches"] for record in base[1]]
    assert [record["replayed"] for record in base[1]] == [0, 1, 0, counts[3] - 1, 0, 1]
    assert trained("pipelined-boundary", dropless_last=True)[0] == base


@pytest.mark.slow
def test_control_an_attempt_that_counts_is_seen():
    (_, records), _ = trained("", overflowed=lambda model: jnp.zeros((), bool))
    assert [record["skipped"] for record in records] == [0, 1, 1, 1, 0, 1]
