"""The parts of a job that hold arrays: made in this process, or written down for processes of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steptrace.ir import Program
from steptrace.lang.parts import Tokenizer
from steptrace.lower import target_named
from steptrace.lower.targets import OWN_PROCESSES
from steptrace.run.job.config import JobConfig
from steptrace.run.job.devices import mesh_of, mesh_sizes
from steptrace.run.job.optimizer import rl_optimizer
from steptrace.run.job.recipe import Recipe
from steptrace.run.job.setup import Blueprint, Setup
from steptrace.run.job.warmup import FOLDER, kept_warm
from steptrace.run.models.split import SplitModel, split_model
from steptrace.run.remote.hosting import hosted
from steptrace.run.rollout import FrozenReference, JaxRollout
from steptrace.run.trainer import GrpoLoss, JaxTrainer
from steptrace.run.trainer.heads import HeadName
from steptrace.workers import remote


@dataclass(frozen=True)
class Built:
    """The parts that hold arrays, each here or in a process of its own.

    Attributes:
      trainer: a `JaxTrainer`.
      rollout: a `JaxRollout`.
      reference: a `FrozenReference`.
    """

    trainer: Any
    rollout: Any
    reference: Any

    def by_role(self) -> dict[str, Any]:
        """The parts by role."""
        return {"trainer": self.trainer, "rollout": self.rollout, "reference": self.reference}


@contextmanager
def parts_of_job(
    setup: Setup, split: SplitModel, program: Program, config: JobConfig, head: HeadName, out: Path
) -> Iterator[Built]:
    """Trainer, rollout and reference, all from the warmed-up parameters, where the job's target wants them.

    Args:
      setup: the task and its shapes.
      split: the warmed-up model.
      program: what is trained by.
      config: the job.
      head: what makes log-probs.
      out: its folder, in which the warm-up is kept: a process of its own reads it there.
    """
    if OWN_PROCESSES not in target_named(config.target).capabilities:
        yield built_here(setup, split, program, config, head)
        return
    recipe, blueprint, warm = setup.recipe, setup.blueprint(config.seed), (out / FOLDER).absolute()
    bind = {
        "trainer": remote(make_trainer, blueprint, warm, recipe, loss_of(recipe, program, head), config.mesh),
        "rollout": remote(
            make_rollout, blueprint, setup.tokenizer, setup.bucket, setup.max_new_tokens, recipe.temperature
        ),
        "reference": remote(make_reference, blueprint, warm, recipe.temperature, head, config.mesh),
    }
    with hosted(bind) as parts:
        yield Built(**parts)


def built_here(setup: Setup, split: SplitModel, program: Program, config: JobConfig, head: HeadName) -> Built:
    """The parts in this process."""
    recipe = setup.recipe
    return Built(
        trainer=trainer_of(split, recipe, loss_of(recipe, program, head), config.mesh),
        rollout=make_rollout(
            setup.blueprint(config.seed), setup.tokenizer, setup.bucket, setup.max_new_tokens, recipe.temperature
        ),
        reference=reference_of(split, recipe.temperature, head, config.mesh),
    )


def loss_of(recipe: Recipe, program: Program, head: HeadName) -> GrpoLoss:
    """The recipe's loss; its KL penalty where the program makes the reference's log-probs, else none."""
    anchored = any(op.kind == "ref_logps" for op in program.ops())
    return GrpoLoss(
        clip_low=recipe.clip_low,
        clip_high=recipe.clip_high,
        kl_coef=recipe.kl_coef if anchored else 0.0,
        aggregation=recipe.aggregation,
        temperature=recipe.temperature,
        entropy_coef=recipe.entropy_coef,
        head=head,
    )


def trainer_of(split: SplitModel, recipe: Recipe, loss: GrpoLoss, mesh: str) -> JaxTrainer:
    """A trainer of a model, on a mesh as `devices.mesh_sizes` reads it."""
    return JaxTrainer(split, rl_optimizer(recipe), loss, mesh=mesh_of(mesh_sizes(mesh)))


def reference_of(split: SplitModel, temperature: float, head: HeadName, mesh: str) -> FrozenReference:
    """A reference of a model; on the mesh where its head works there."""
    where = None if head == "dense" else mesh_of(mesh_sizes(mesh))
    return FrozenReference(split, temperature=temperature, head=head, mesh=where)


def make_trainer(blueprint: Blueprint, warm: Path, recipe: Recipe, loss: GrpoLoss, mesh: str) -> JaxTrainer:
    """A trainer of the warmed-up model that is kept in a folder."""
    return trainer_of(kept_warm(split_model(blueprint.model()), warm), recipe, loss, mesh)


def make_rollout(
    blueprint: Blueprint, tokenizer: Tokenizer, bucket: int, max_new_tokens: int, temperature: float
) -> JaxRollout:
    """A rollout of the model's form, for prompts of at most ``bucket`` tokens."""
    model = blueprint.model()
    return JaxRollout(model, tokenizer, buckets=(bucket,), max_new_tokens=max_new_tokens, temperature=temperature)


def make_reference(blueprint: Blueprint, warm: Path, temperature: float, head: HeadName, mesh: str) -> FrozenReference:
    """The reference: the warmed-up model that is kept in a folder."""
    return reference_of(kept_warm(split_model(blueprint.model()), warm), temperature, head, mesh)
