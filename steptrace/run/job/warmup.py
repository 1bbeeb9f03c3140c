"""The supervised warm-up: a fixed number of updates on questions with their answers, kept in the output folder."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from steptrace.diag.job import BrokenJobFolderError
from steptrace.lang.records import Completion, Group, GroupId, MicroBatch, Prompt
from steptrace.run.data.cursor import DataCursor, Draws
from steptrace.run.job.evaluate import Evaluator
from steptrace.run.job.optimizer import warmup_optimizer
from steptrace.run.job.setup import Setup, seed_of
from steptrace.run.models.split import SplitModel, split_model
from steptrace.run.trainer import JaxTrainer, SftLoss
from steptrace.run.trainer.checkpoint import load_state, save_state

FOLDER = "warmup"
_BUILDING = ".saving-warmup"
_FACTS = "facts.json"


@dataclass(frozen=True)
class Facts:
    """What a warm-up reached.

    Attributes:
      steps: its updates.
      loss: mean cross entropy of the last update, in nats a token.
      accuracy: greedy accuracy on the held-out problems, before RL.
      seconds: how long it took, with its compilations.
    """

    steps: int
    loss: float
    accuracy: float
    seconds: float


@dataclass(frozen=True)
class WarmedUp:
    """A model after its warm-up.

    Attributes:
      split: the model taken apart, with the parameters that RL starts from.
      facts: what was reached.
      restored: whether it was read back instead of trained.
    """

    split: SplitModel
    facts: Facts
    restored: bool


def warmed_up(
    setup: Setup, evaluator: Evaluator, out: Path, *, seed: int, progress: Callable[[int, float], None]
) -> WarmedUp:
    """The warm-up kept in ``out``, or a new one, which is kept there; both give the same bits.

    Args:
      setup: the task and its shapes.
      evaluator: for the accuracy before RL.
      out: the output folder.
      seed: of the run.
      progress: called with the updates done and the loss of the last one.

    Raises:
      BrokenJobFolderError, DamagedStateError: what is kept is not what was written.
    """
    split = split_model(setup.model(seed))
    if (out / FOLDER).is_dir():
        return _restored(split, out / FOLDER)
    start = time.perf_counter()
    params, loss = _train(setup, split, seed, progress)
    accuracy = evaluator.accuracy(params)
    facts = Facts(setup.recipe.warmup_steps, loss, accuracy, time.perf_counter() - start)
    _keep(params, facts, out)
    return WarmedUp(replace(split, params=params), facts, restored=False)


def _train(setup: Setup, split: SplitModel, seed: int, progress: Callable[[int, float], None]) -> tuple[Any, float]:
    """Parameters after the warm-up, and the loss of its last update."""
    recipe = setup.recipe
    trainer = JaxTrainer(split, warmup_optimizer(recipe), SftLoss())
    draws, cursor = Draws(setup.train, seed=seed_of("warm-up", seed)), DataCursor()
    loss = 0.0
    for step in range(recipe.warmup_steps):
        drawn, cursor = draws.draw(cursor, recipe.warmup_batch)
        for micro_batch in answered(setup, drawn, step):
            trainer.fwd_bwd(micro_batch)
        trainer.update()
        if step % 10 == 9 or step + 1 == recipe.warmup_steps:
            loss = trainer.get_records()[-1]["loss"]
            progress(step + 1, loss)
    params, _ = trainer.weights()
    return params, loss


def answered(setup: Setup, drawn: list[tuple[GroupId, Prompt]], step: int) -> list[MicroBatch]:
    """Questions with their right answers as the completions, packed as RL packs its samples."""
    groups = []
    for name, prompt in drawn:
        tokens = np.asarray(setup.answer_tokens(prompt), np.int32)
        blank = np.zeros(len(tokens), np.float32)
        completion = Completion(tokens, blank, setup.task.answer(prompt) or "", finished=True)
        asked = np.asarray(setup.tokenizer.encode(prompt.text), np.int32)
        groups.append(Group(name, step, prompt, asked, (completion,), 0, advantages=np.zeros(1, np.float32)))
    return setup.packer.pack(groups, step=step)


def _keep(params: Any, facts: Facts, out: Path) -> None:
    """Write the warm-up beside its place and move it there: it is kept whole or not at all."""
    building = out / _BUILDING
    shutil.rmtree(building, ignore_errors=True)
    save_state(building, {"params": params})
    (building / _FACTS).write_text(json.dumps(asdict(facts), indent=1))
    os.replace(building, out / FOLDER)


def _restored(split: SplitModel, folder: Path) -> WarmedUp:
    try:
        facts = Facts(**json.loads((folder / _FACTS).read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise BrokenJobFolderError(
            f"{folder / _FACTS} cannot be read: {error}", help=f"delete {folder}, and the warm-up is trained again"
        ) from error
    return WarmedUp(kept_warm(split, folder), facts, restored=True)


def kept_warm(split: SplitModel, folder: Path) -> SplitModel:
    """A model with the parameters of the warm-up that is kept in a folder.

    Raises:
      DamagedStateError: what is kept is not what was written.
    """
    return replace(split, params=load_state(folder, {"params": split.params})["params"])
