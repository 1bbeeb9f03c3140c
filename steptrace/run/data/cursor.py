"""Which prompts a step draws: a function of the seed and a position, so that resuming seeks."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from steptrace.diag.data import DataStateError, DuplicatePromptError, EmptyPromptsError
from steptrace.lang.parts import PromptSource
from steptrace.lang.records import GroupId, Prompt


@dataclass(frozen=True, slots=True, order=True)
class DataCursor:
    """How many prompts were drawn before. Immutable: a draw returns the next one.

    Attributes:
      position: draws so far, over all epochs.
    """

    position: int = 0


class Draws:
    """Draws prompts without end, or for some epochs; each epoch is a permutation of all prompts.

    Draw ``position`` is prompt ``order(epoch)[position % n]`` with ``epoch = position // n``, a pure function of the
    seed and the position: a run that is resumed at a cursor draws what it would have drawn, without going through
    the draws before (it computes one epoch's order). Each epoch draws each prompt once, so the epoch is the number
    of earlier draws of that prompt, and (prompt, epoch) is a group id that never comes twice.

    Args:
      source: the prompts.
      seed: of the order.
      epochs: after how many the data ends; None for never.
      shuffle: False keeps the source's order in every epoch.

    Raises:
      EmptyPromptsError: the source has no prompts.
    """

    def __init__(self, source: PromptSource, *, seed: int = 0, epochs: int | None = None, shuffle: bool = True) -> None:
        if len(source) < 1:
            raise EmptyPromptsError(f"the prompt source {type(source).__name__} is empty")
        self._source = source
        self._size = len(source)
        self._seed = seed
        self._end = None if epochs is None else epochs * self._size
        self._shuffle = shuffle
        self._epoch_order: tuple[int, np.ndarray] | None = None
        self._index_of: dict[str, int] = {}

    def draw(self, cursor: DataCursor, count: int) -> tuple[list[tuple[GroupId, Prompt]], DataCursor]:
        """The next ``count`` prompts with their group ids, and the cursor behind them.

        Near the end of the data there are fewer, at the end none, and the cursor stays: an empty answer is how the
        data says that it has ended.

        Raises:
          DuplicatePromptError: two prompts of the source have one id.
        """
        end = self.after(cursor, count)
        drawn = [self._at(position) for position in range(cursor.position, end.position)]
        return drawn, end

    def after(self, cursor: DataCursor, count: int) -> DataCursor:
        """The cursor behind the next ``count`` prompts, or behind as many as there are."""
        assert count >= 0, "a step draws a number of prompts"
        end = cursor.position + count
        return DataCursor(end if self._end is None else max(cursor.position, min(end, self._end)))

    def ended(self, cursor: DataCursor) -> bool:
        """True when nothing is left to draw."""
        return self._end is not None and cursor.position >= self._end

    def state(self, cursor: DataCursor) -> dict[str, int]:
        """The cursor for a checkpoint, as JSON, with the facts that give it meaning."""
        return {"position": cursor.position, "prompts": self._size, "seed": self._seed, "shuffle": int(self._shuffle)}

    def last(self, cursor: DataCursor) -> str:
        """A hash of the prompt that was drawn last before the cursor, its id and text; "" ahead of the first draw."""
        if not cursor.position:
            return ""
        _, prompt = self._at(cursor.position - 1)
        words = f"{len(prompt.id)} {prompt.id} {prompt.text}".encode("utf-8", "surrogatepass")
        return hashlib.blake2b(words, digest_size=16).hexdigest()

    def restore(self, state: Mapping[str, object]) -> DataCursor:
        """The cursor of a checkpoint.

        Raises:
          DataStateError: it counts in another prompt set, with another seed, or is no such state.
        """
        position = state.get("position")
        if not isinstance(position, int) or position < 0:
            raise DataStateError(f"the saved position of the draws is {position!r}")
        for name, now in self.state(DataCursor()).items():
            if name != "position" and state.get(name) != now:
                raise DataStateError(
                    f"the draws were saved with {name}={state.get(name)!r}, and this run has {name}={now}",
                    help="resume with the prompts and the seed of the first run",
                )
        return DataCursor(position)

    def _at(self, position: int) -> tuple[GroupId, Prompt]:
        """One draw."""
        epoch, offset = divmod(position, self._size)
        index = int(self._order(epoch)[offset])
        prompt = self._source[index]
        if self._index_of.setdefault(prompt.id, index) != index:
            raise DuplicatePromptError(
                f"prompts {self._index_of[prompt.id]} and {index} of the source both have the id {prompt.id!r}"
            )
        return GroupId(prompt.id, epoch), prompt

    def _order(self, epoch: int) -> np.ndarray:
        """The permutation of an epoch, int64 [n]; the last one asked for is kept."""
        if self._epoch_order is None or self._epoch_order[0] != epoch:
            order = permutation(self._size, self._seed, epoch) if self._shuffle else np.arange(self._size)
            self._epoch_order = (epoch, order)
        return self._epoch_order[1]


def permutation(size: int, seed: int, epoch: int) -> np.ndarray:
    """A permutation of ``size`` prompts, int64 [size]: they are sorted by a hash of (seed, epoch, index).

    A hash and a stable sort, rather than a library's generator, whose stream may change from one release to the
    next: a run resumed under a newer numpy keeps its order. The hash is the output function of SplitMix64 (Steele,
    Lea, Flood 2014).
    """
    key = _mix(_mix(np.array([seed % 2**64], np.uint64)) + np.uint64(epoch))
    return np.argsort(_mix(key + _GOLDEN * np.arange(size, dtype=np.uint64)), kind="stable")


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(words: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser over uint64 words; products wrap."""
    words = words + _GOLDEN
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = words ^ (words >> np.uint64(31))
    return mixed
