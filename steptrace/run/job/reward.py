"""The reward of the job: the dataset's own score, and a bonus for a right answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from steptrace.lang.records import Prompt
from steptrace.run.tasks import Task


@dataclass(frozen=True)
class ScoreAndExact:
    """``(1 - exact_share) * score + exact_share * (score is full)``.

    A score that gives a part for wrong answers is easier to climb than one that does not, and can be gamed. That of
    ``spell_backward`` counts matching places, so that an answer which goes on too long loses little: models that are
    trained by it alone stop ending short words. The exact share is what the evaluation counts.

    Attributes:
      task: the task, which judges.
      exact_share: in 0..1; 0 is the dataset's score alone, 1 is 1 for a right answer and 0 for any other.
    """

    task: Task
    exact_share: float

    def __call__(self, prompt: Prompt, completions: Sequence[str]) -> list[float]:
        """A reward in 0..1 for each completion, 1 for a right one, where the dataset's scores are in 0..1."""
        scores = self.task.reward(prompt, completions)
        return [(1 - self.exact_share) * score + self.exact_share * (score >= 1.0) for score in scores]
