"""Replay: a micro-batch that lost tokens to a finite buffer counts for nothing, and is run again without loss."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator
from operator import methodcaller
from typing import Any

import jax
import jax.numpy as jnp

from steptrace.diag.base import Note
from steptrace.diag.training import ReleasedInputError, ReplayError
from steptrace.run.models.split import SplitModel


@dataclasses.dataclass(frozen=True)
class Replay:
    """How a model that may drop tokens says so, and which model runs a micro-batch again without dropping any.

    The functions get the model that ``build(params, rest)`` made, inside the trace of a leaf. By default they are
    the methods of those names that `models.moe.MoeDecoder` has.

    Attributes:
      watched: ``watched(model)`` gives the model that the loss is called with, and that notes whether it drops; its
        state is collected as the model's own would be.
      overflowed: ``overflowed(watched_model)`` gives, after the loss was called, a bool scalar: whether it dropped.
      as_dropless: ``as_dropless(model)`` gives a model with the same parameters and state that never drops.
      dropless_last: run the last micro-batch of a step (`MicroBatch.last`) without dropping from the start, so that
        ``update`` has no flag to wait for.
    """

    watched: Callable[[Any], Any] = methodcaller("watched")
    overflowed: Callable[[Any], Any] = methodcaller("overflowed")
    as_dropless: Callable[[Any], Any] = methodcaller("as_dropless")
    dropless_last: bool = False

    def dropless(self, split: SplitModel) -> SplitModel:
        """The split model whose program never drops; its parameters and state are the same."""
        return dataclasses.replace(
            split, build=lambda params, rest: _called("as_dropless", self.as_dropless, split.build(params, rest))
        )

    def watch(self, model: Any) -> Any:
        """The watched model; raises `ReplayError`."""
        return _called("watched", self.watched, model)

    def flag(self, watched: Any) -> jax.Array:
        """Whether the model has dropped, checked to be a bool scalar; raises `ReplayError`."""
        flag = jnp.asarray(_called("overflowed", self.overflowed, watched))
        if flag.shape or flag.dtype != jnp.bool_:
            raise ReplayError(f"overflowed(model) must give a bool scalar, not an array {flag.dtype}{list(flag.shape)}")
        return flag


@dataclasses.dataclass(frozen=True, slots=True)
class Attempt:
    """A micro-batch whose flag nobody has read yet, and all that it takes to run it again.

    Attributes:
      name: the micro-batch in words.
      arrays: its arrays.
      rest: the model's other state that it began with.
      flag: bool scalar on the device: whether it dropped tokens, and so was not added up.
    """

    name: str
    arrays: dict[str, Any]
    rest: Any
    flag: jax.Array

    def check_inputs(self) -> None:
        """Refuse to run again what is no longer there."""
        for name, array in self.arrays.items():
            if isinstance(array, jax.Array) and array.is_deleted():
                raise ReleasedInputError(
                    f"{self.name} dropped tokens and is to run again, but its `{name}` was given away meanwhile",
                    help="keep a micro-batch's arrays until the one after it has been sent, or the update made",
                )


class Unsettled:
    """Attempts in order whose flags are still to be read, and how many of the step's were run again."""

    def __init__(self) -> None:
        self._attempts: deque[Attempt] = deque()
        self.replayed = 0

    def add(self, attempt: Attempt) -> None:
        """Keep an attempt until it is settled."""
        self._attempts.append(attempt)

    def to_replay(self, keep: int) -> Iterator[Attempt]:
        """Read all flags but the newest ``keep``, waiting for each, and give out the attempts that dropped tokens.

        An attempt is let go once what its flag asked for is done.

        Raises:
          ReleasedInputError: an attempt dropped tokens, and its arrays are gone.
        """
        while len(self._attempts) > keep:
            attempt = self._attempts[0]
            if bool(attempt.flag):
                attempt.check_inputs()
                yield attempt
                self.replayed += 1
            self._attempts.popleft()

    def close(self) -> int:
        """How many of the step's micro-batches were run again; the next step begins at 0."""
        assert not self._attempts, "an update settles all attempts"
        replayed, self.replayed = self.replayed, 0
        return replayed

    def drop(self) -> None:
        """Forget the step."""
        self._attempts.clear()
        self.replayed = 0


def check_state(before: Any, after: Any) -> None:
    """Refuse a model whose call changed a floating array of its other state.

    The flag is read once the next micro-batch is on its way: it has begun with the state that the dropped attempt left.
    What does not depend on the data, like the counts of RNG streams, is the same after both.
    """
    pairs = zip(jax.tree_util.tree_leaves_with_path(before), jax.tree.leaves(after), strict=True)
    changed = [
        jax.tree_util.keystr(path, simple=True, separator=".")
        for (path, old), new in pairs
        if new is not old and jnp.issubdtype(new.dtype, jnp.floating)
    ]
    if changed:
        notes = tuple(Note(f"changed: {name}") for name in changed)
        message = "a model whose calls change its floating state cannot be run again one micro-batch late"
        raise ReplayError(message, notes=notes)


def _called(name: str, function: Callable[[Any], Any], model: Any) -> Any:
    """A function of a `Replay` on a model; a model without the default's method is a coded error."""
    if function is getattr(Replay, name) and not hasattr(model, name):
        raise ReplayError(
            f"a {type(model).__name__} has no method `{name}`, so it cannot be replayed",
            help=f"train it without replay, or give Replay({name}=...)",
        )
    return function(model)
