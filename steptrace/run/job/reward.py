"""The reward of the job: right or not, or the dataset's own score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from steptrace.lang.parts import Reward
from steptrace.lang.records import Prompt
from steptrace.run.tasks import Task


def reward_of(task: Task, kind: Literal["exact", "score"]) -> Reward:
    """The reward part of that kind."""
    return ExactReward(task) if kind == "exact" else task.reward


@dataclass(frozen=True)
class ExactReward:
    """1 for an answer with the dataset's full score, 0 for any other: the reward is what the evaluation counts.

    A score that gives a part for wrong answers is easier to climb at first and can be gamed later. That of
    ``spell_backward`` counts matching places, so that an answer which goes on too long loses little or nothing, and
    models trained by it stop ending short words.

    Attributes:
      task: the task.
    """

    task: Task

    def __call__(self, prompt: Prompt, completions: Sequence[str]) -> list[float]:
        """1.0 or 0.0 for each completion."""
        return [float(self.task.exact(prompt, text)) for text in completions]
