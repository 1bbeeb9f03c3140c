"""What the parts of a step hand to one another: prompts, groups, micro-batches. Host data, numpy arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of a data source.

    Attributes:
      id: opaque, unique within its source; any characters.
      text: what the model is given.
      meta: whatever the reward needs to judge a completion (the answer, say).
    """

    id: str
    text: str
    meta: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, order=True)
class GroupId:
    """Identity of a group: a prompt and how many times it had been drawn before. Compared whole, never parsed.

    Attributes:
      prompt: the prompt's id.
      draw: 0 for the first time the prompt is drawn in a run, then 1, 2, ...
    """

    prompt: str
    draw: int


@dataclass(frozen=True, slots=True)
class Completion:
    """One sampled completion.

    Attributes:
      tokens: int32 [length], the sampled tokens, the stop token included when it was sampled.
      logps: float32 [length], log-prob of each token under the distribution it was sampled from
        (temperature applied).
      text: the tokens decoded, without the stop token.
      finished: True when the stop token was sampled, False when the length limit cut it.
    """

    tokens: np.ndarray
    logps: np.ndarray
    text: str
    finished: bool


@dataclass(frozen=True, slots=True)
class Group:
    """All samples of one prompt in one step.

    Attributes:
      id: identity of the group.
      step: the step it was generated for.
      prompt: the prompt.
      prompt_tokens: int32 [prompt_length].
      completions: one per sample.
      version: version of the weights that sampled it.
      rewards: float32 [samples], or None before ``reward`` ran.
      advantages: float32 [samples], or None before ``advantages`` ran.
    """

    id: GroupId
    step: int
    prompt: Prompt
    prompt_tokens: np.ndarray
    completions: tuple[Completion, ...]
    version: int
    rewards: np.ndarray | None = None
    advantages: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Packed sequences of fixed shape: what one ``fwd_bwd`` call trains on.

    ``arrays`` holds, each [rows, length]:

    - ``tokens`` int32, ``segment_ids`` int32 (0 is padding; 1, 2, ... count the sequences of a row),
      ``positions`` int32 (0 at the first token of each sequence);
    - ``loss_mask`` float32, 1 on completion tokens;
    - ``rollout_logps`` float32, log-probs of the sampled tokens under the sampling distribution;
    - ``advantages`` float32, the sequence's advantage on its completion tokens;
    - ``ref_logps``, ``old_logps`` float32 once those ops ran, and whatever users' ops add.

    Convention: ``logps[r, i]`` belongs to token ``tokens[r, i]``.

    Attributes:
      step: the step it belongs to.
      index: its place in the step, from 0.
      arrays: the arrays by name.
      keys: for each row the (group id, sample index) of its sequences in order, to join values by key.
      last: True for the last micro-batch of its step.
    """

    step: int
    index: int
    arrays: Mapping[str, np.ndarray]
    keys: tuple[tuple[tuple[GroupId, int], ...], ...]
    last: bool = False

    def with_array(self, name: str, array: np.ndarray) -> MicroBatch:
        """The micro-batch with one more array of shape [rows, length] under ``name``."""
        return replace(self, arrays={**self.arrays, name: array})
