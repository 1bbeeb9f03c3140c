"""Greedy accuracy on held-out problems."""

from __future__ import annotations

from typing import Any

from steptrace.run.job.setup import Setup
from steptrace.run.rollout.rollout import JaxRollout

_BATCH = 100


class Evaluator:
    """Greedy decoding of the held-out problems, with a rollout of its own.

    Args:
      setup: the task and its shapes.
      model: gives the form of the parameters.
    """

    def __init__(self, setup: Setup, model: Any) -> None:
        self._setup = setup
        self._prompts = [setup.held_out[index] for index in range(len(setup.held_out))]
        self._rollout = JaxRollout(
            model,
            setup.tokenizer,
            buckets=(setup.bucket,),
            max_new_tokens=setup.max_new_tokens,
            batch_size=min(_BATCH, len(self._prompts)),
        )

    def accuracy(self, weights: Any) -> float:
        """Share of the held-out problems that greedy decoding answers right, in 0..1."""
        self._rollout.apply_weights(weights, 0)
        try:
            completions = self._rollout.greedy(self._prompts, 0)
        finally:
            self._rollout.drop_weights(0)
        answers = zip(self._prompts, completions, strict=True)
        return sum(self._setup.task.exact(prompt, completion.text) for prompt, completion in answers) / len(
            self._prompts
        )
