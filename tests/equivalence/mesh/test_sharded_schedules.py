"""A decoder sampled on one device and trained on eight: under every schedule as in program order, bit for bit."""

from __future__ import annotations

import functools
from dataclasses import replace

import jax
import optax
import pytest
from sharded_runs import Made

import steptrace
from steptrace.passes.registry import PIPELINES
from steptrace.run.data.packing import Packer
from steptrace.run.models.decoder import Decoder, DecoderConfig
from steptrace.run.rollout import FrozenReference
from steptrace.run.trainer import GrpoLoss, JaxTrainer

pytestmark = pytest.mark.slow

PIPES = [name for name in PIPELINES if not name.endswith("replayed")]
STEPS = (0, 1, 2, 5)


@steptrace.op(takes=("groups",), gives="groups", reads=["host[k]"], writes=[])
def some_left(groups):
    """Leaves groups for 9 micro-batches, then for 1, none, a few, and 9 again."""
    step = groups[0].step
    return groups[: (9, 1, 0, 4)[step % 4]]


@steptrace.program(staleness=1)
def thinned(step, prompts: int = 9, samples: int = 4, save_every: int = 2):
    """Steps of 0 to 9 micro-batches."""
    step.dispatch(prompts=prompts, samples=samples)
    left = some_left(step.reward(step.take()))
    for mb in step.micro_batches(step.pack(step.advantages(left))):
        step.fwd_bwd(step.ref_logps(mb))
    step.update()
    metrics = step.get_metrics()
    with step.every(save_every):
        step.save_checkpoint()
    step.sync_weights()
    step.commit()
    step.log(metrics)
    step.on_step_end(reads=["metrics"])


def program(name: str):
    return thinned.trace() if name == "thinned" else f"{name}{{prompts=9, samples=4, staleness=1, save_every=2}}"


@functools.cache
def compiled():
    """The parts that compile, made once for all runs."""
    model = Decoder(DecoderConfig(vocab_size=16, dim=8, layers=1, heads=2, max_length=16))
    mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "context"), axis_types=(jax.sharding.AxisType.Auto,) * 3)
    trainer = JaxTrainer(model, optax.adam(1e-2), GrpoLoss(kl_coef=0.1), mesh=mesh)
    return Made(model, trainer, FrozenReference(model), batch_size=9)


def made_by(name: str, steps: int, pipeline: str = "", packer: Packer | None = None):
    """Digests and records of a run with all parts as they were made."""
    return compiled().run(program(name), pipeline, steps=steps, packer=packer or Packer(rows=4, length=12))[0]


base = functools.cache(made_by)


@pytest.mark.parametrize("pipeline", PIPES)
@pytest.mark.parametrize("name", ["grpo", "grpo_stream", "thinned"])
def test_every_pipeline_trains_the_same_on_eight_devices(name, pipeline):
    for steps in STEPS:
        assert made_by(name, steps, pipeline) == base(name, steps)


def test_control_steps_have_unequal_numbers_of_micro_batches_up_to_nine():
    assert [record["micro_batches"] for record in base("thinned", 5)[1]] == [9, 1, 0, 4, 9]
    assert max(record["micro_batches"] for record in base("grpo", 5)[1]) > 5
    assert base("grpo_stream", 5)[0][0] == base("grpo", 5)[0][0]
    assert (
        len({base(name, steps)[0][0] for name in ("grpo", "thinned") for steps in STEPS[1:]}) == 5
    )  # the first step is the same


def test_control_micro_batches_in_another_order_are_seen():
    class Swapped(Packer):
        """The last two micro-batches of a step trade places."""

        def pack(self, groups, *, step):
            made = super().pack(groups, step=step)
            order = [*made[:-2], made[-1], made[-2]]
            return [replace(one, index=index, last=index == len(made) - 1) for index, one in enumerate(order)]

    swapped, plain = made_by("grpo", 1, packer=Swapped(rows=4, length=12)), base("grpo", 1)
    assert swapped[0][2] == plain[0][2]
    assert swapped[0][0] != plain[0][0]
    assert swapped[0][1] != plain[0][1]
