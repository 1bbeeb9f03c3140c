"""The control: rewards that belong to other samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import jax
import numpy as np

from steptrace.lang.records import Group
from steptrace.run.rng import key_for

Estimator = Callable[[list[Group]], list[Group]]


@dataclass(frozen=True)
class ShuffledRewards:
    """Advantages from rewards that were permuted among all samples that are estimated together.

    The rewards keep their distribution, and lose all they say about the completions: whatever is learned from them
    is noise. The permutation depends on the seed, the step and the groups, not on earlier calls.

    Attributes:
      estimate: the estimator.
      seed: of the permutations.
    """

    estimate: Estimator
    seed: int

    def __call__(self, groups: Sequence[Group]) -> list[Group]:
        """The groups in order, with advantages of shuffled rewards, and their own rewards."""
        if not groups:
            return []
        rewards = [np.asarray(group.rewards) for group in groups]
        key = key_for(self.seed, f"shuffled-rewards {groups[0].id.prompt}", groups[0].step)
        shuffled = np.asarray(jax.random.permutation(key, np.concatenate(rewards)))
        parts = np.split(shuffled, np.cumsum([len(part) for part in rewards])[:-1])
        estimated = self.estimate([replace(group, rewards=part) for group, part in zip(groups, parts, strict=True)])
        return [replace(group, rewards=own) for group, own in zip(estimated, rewards, strict=True)]
