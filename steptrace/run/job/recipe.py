"""Recipes: every number of the main job that was tuned, by task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal


@dataclass(frozen=True)
class Recipe:
    """What the main job trains, and how. A task without a recipe of its own takes these defaults.

    Attributes:
      dataset: settings of the dataset, over the task's own.
      questions: training questions wanted.
      longest_prompt: questions of more tokens are left out.
      longest_answer: as are those whose right answer has more.
      dim, layers, heads: sizes of the decoder.
      rope_theta: base of the rotary wavelengths; short sequences want a small one, or most bands stand still.
      warmup_steps: supervised updates before RL, a fixed number.
      warmup_batch: questions of each.
      warmup_learning_rate: its peak, after a tenth of the steps; it falls to a tenth at the end.
      steps: RL updates, when the caller does not say.
      learning_rate: of RL, after ``ramp`` updates.
      ramp: updates over which the learning rate rises from 0.
      decay: updates, counted from the first, over which it then falls to ``final_share``; 0 keeps it.
      final_share: the share of the learning rate that is left at the end of the decay.
      b2: decay of Adam's second moment.
      weight_decay: of AdamW, in the warm-up too.
      clip_norm: largest norm of a gradient, in the warm-up too.
      clip_low, clip_high, kl_coef, entropy_coef, aggregation: see `GrpoLoss`.
      exact_share: share of the reward that only a right answer gets, in 0..1; the rest is the dataset's own score,
        which may give a part for a wrong answer.
      temperature: of sampling, and so of every log-prob.
      micro_batch_tokens: about how many tokens a micro-batch holds, padding included.
      sequences_per_row: how many of the longest sequences fit a row.
    """

    dataset: Mapping[str, Any] = field(default_factory=dict)
    questions: int = 4000
    longest_prompt: int = 256
    longest_answer: int = 64
    dim: int = 96
    layers: int = 2
    heads: int = 6
    rope_theta: float = 100.0
    warmup_steps: int = 44
    warmup_batch: int = 128
    warmup_learning_rate: float = 3e-3
    steps: int = 400
    learning_rate: float = 1e-3
    ramp: int = 30
    decay: int = 0
    final_share: float = 0.1
    b2: float = 0.999
    weight_decay: float = 1e-4
    clip_norm: float = 1.0
    clip_low: float = 0.2
    clip_high: float = 0.28
    kl_coef: float = 0.05
    entropy_coef: float = 0.0
    aggregation: Literal["token_mean", "sequence_mean"] = "token_mean"
    exact_share: float = 0.5
    temperature: float = 1.0
    micro_batch_tokens: int = 600
    sequences_per_row: int = 4


RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        "spell_backward": Recipe(),
        "chain_sum": Recipe(
            dataset={"max_terms": 3},
            layers=3,
            warmup_steps=85,
            steps=400,
            learning_rate=6e-4,
            decay=370,
            final_share=0.05,
            kl_coef=0.02,
            exact_share=1.0,
        ),
    }
)
"""Recipes of the tasks they were tuned on."""


def recipe_for(task: str) -> Recipe:
    """The task's recipe, or the default one."""
    return RECIPES.get(task, Recipe())
