"""Advantages from rewards: group-relative, leave-one-out, and normalised over the step.

Each estimator is a frozen dataclass called with groups; ``scope`` says how much it must see at once: ``"group"``
(a group's advantages depend on that group alone, so groups may come one by one) or ``"step"`` (it needs all
groups of the step).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from steptrace.diag.data import RewardsMissingError, SingleSampleError
from steptrace.lang.records import Group

Scope = Literal["group", "step"]


@dataclass(frozen=True, slots=True)
class GroupAdvantages:
    """Reward minus the mean of its group, divided by the group's standard deviation.

    With ``std=True`` the estimator of GRPO (Shao et al. 2024, "DeepSeekMath"): ``(r - mean) / (std + eps)``, std
    over the group's samples (population). With ``std=False`` only the mean is taken off, which leaves out the
    weight that the division gives to prompts of low variance (Liu et al. 2025, "Understanding R1-Zero-Like Training",
    Dr. GRPO). A group whose rewards are all equal, a group of one among them, has advantages of exactly 0.

    Attributes:
      std: divide by the standard deviation.
      eps: added to it.
    """

    scope: ClassVar[Scope] = "group"

    std: bool = True
    eps: float = 1e-6

    def __call__(self, groups: Sequence[Group]) -> list[Group]:
        """The groups in order with ``advantages``, float32 [samples], computed in float64."""
        return [_with_advantages(group, self._of(_rewards(group))) for group in groups]

    def _of(self, rewards: np.ndarray) -> np.ndarray:
        return _normalised(rewards, self.eps) if self.std else _centred(rewards)


@dataclass(frozen=True, slots=True)
class LeaveOneOut:
    """Reward minus the mean reward of the group's other samples.

    RLOO (Ahmadian et al. 2024, "Back to Basics: Revisiting REINFORCE Style Optimization"): a baseline that does
    not depend on the sample itself, so the estimate stays unbiased.

    Raises:
      SingleSampleError: a group has one sample.
    """

    scope: ClassVar[Scope] = "group"

    def __call__(self, groups: Sequence[Group]) -> list[Group]:
        """The groups in order with ``advantages``, float32 [samples], computed in float64."""
        return [_with_advantages(group, self._of(group, _rewards(group))) for group in groups]

    def _of(self, group: Group, rewards: np.ndarray) -> np.ndarray:
        if len(rewards) < 2:
            raise SingleSampleError(
                f"group {group.id} has {len(rewards)} sample, and leave-one-out needs two",
                help="sample at least 2 completions of each prompt",
            )
        # r - (sum - r) / (n - 1) = (r - mean) * n / (n - 1)
        return _centred(rewards) * (len(rewards) / (len(rewards) - 1))


@dataclass(frozen=True, slots=True)
class GlobalNormalized:
    """Reward normalised by mean and standard deviation over all samples of the step.

    The advantage normalisation of REINFORCE++ (Hu 2025), without its token-level KL term: the statistics are those
    of the whole batch, so one sample of a prompt is enough. All rewards of the step equal: exactly 0.

    Attributes:
      eps: added to the standard deviation (population).
    """

    scope: ClassVar[Scope] = "step"

    eps: float = 1e-6

    def __call__(self, groups: Sequence[Group]) -> list[Group]:
        """The groups in order with ``advantages``, float32 [samples], computed in float64."""
        rewards = [_rewards(group) for group in groups]
        if not rewards:
            return []
        advantages = _normalised(np.concatenate(rewards), self.eps)
        parts = np.split(advantages, np.cumsum([len(part) for part in rewards])[:-1])
        return [_with_advantages(group, part) for group, part in zip(groups, parts, strict=True)]


def _rewards(group: Group) -> np.ndarray:
    """The group's rewards, float64 [samples]."""
    if group.rewards is None:
        raise RewardsMissingError(f"group {group.id} has no rewards", help="run `reward` before `advantages`")
    rewards = np.asarray(group.rewards, np.float64)
    if rewards.shape != (len(group.completions),):
        raise RewardsMissingError(
            f"group {group.id} has {len(group.completions)} samples and rewards of shape {rewards.shape}"
        )
    if not np.isfinite(rewards).all():
        raise RewardsMissingError(f"group {group.id} has a reward that is not finite")
    return rewards


def _centred(rewards: np.ndarray) -> np.ndarray:
    """Rewards minus their mean; exactly 0 where all are equal, whatever the mean rounds to."""
    if rewards.size == 0 or rewards.min() == rewards.max():
        return np.zeros_like(rewards)
    centred: np.ndarray = rewards - rewards.mean()
    return centred


def _normalised(rewards: np.ndarray, eps: float) -> np.ndarray:
    """Centred rewards over their standard deviation; exactly 0 where all are equal."""
    centred = _centred(rewards)
    return centred if not centred.any() else centred / (rewards.std() + eps)


def _with_advantages(group: Group, advantages: np.ndarray) -> Group:
    return replace(group, advantages=advantages.astype(np.float32))
