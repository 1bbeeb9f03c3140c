"""Protocols of the parts a user may bring: trainer, rollout, reference, reward, prompts, tokenizer, ...

A part is bound by role: ``steptrace.run(program, bind={"trainer": my_trainer, ...})``. It needs only the
methods that the program's ops call; a missing one is a coded error before step 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import jax
    import numpy as np

    from steptrace.lang.records import Completion, Group, MicroBatch, Prompt


@runtime_checkable
class Trainer(Protocol):
    """Owns parameters, gradient accumulator and optimizer state of the actor.

    Optional verbs, needed when the program has the op: ``old_logps(micro_batch) -> [rows, length]``,
    ``save_checkpoint(directory: Path) -> None`` and ``restore_checkpoint(directory: Path) -> None``,
    ``compile(micro_batch) -> None``, ``info() -> Mapping[str, Any]`` (capabilities and compile counts).
    """

    def fwd_bwd(self, micro_batch: MicroBatch) -> None:
        """Add this micro-batch's un-normalised gradient sums to the accumulator. Returns at dispatch."""
        ...

    def update(self) -> None:
        """Apply the accumulated gradient once, divided by the total count, and clear the accumulator."""
        ...

    def get_metrics(self) -> Mapping[str, float]:
        """Metrics of everything since the last call, on the host; waits for the update; empties the buffer."""
        ...

    def weights(self) -> tuple[Any, int]:
        """A copy of the parameters that later updates do not touch, and its version (applied updates so far)."""
        ...


@runtime_checkable
class Rollout(Protocol):
    """Samples completions with weights it was given.

    Optional: ``drain()`` is called before each ``apply_weights`` and returns once nothing runs any more behind a
    ``generate`` that has returned, surplus that was cancelled included. A rollout of which a dispatch asks for more
    prompts than are trained (``extra``, ``keep``) may return None for a prompt that it has lost.
    """

    def apply_weights(self, weights: Any, version: int) -> None:
        """Hold these weights under ``version``, beside the versions already held."""
        ...

    def drop_weights(self, version: int) -> None:
        """Forget a version; nothing will be generated with it again."""
        ...

    def generate(
        self, prompts: Sequence[Prompt], samples: int, *, version: int, key: jax.Array
    ) -> Sequence[Sequence[Completion]]:
        """``samples`` completions for each prompt, made with exactly the weights of ``version``.

        The result depends on the arguments and the weights only: ``key`` is a JAX PRNG key that is a
        function of (seed, step).
        """
        ...


@runtime_checkable
class Reference(Protocol):
    """A frozen policy whose log-probs anchor the KL term."""

    def logps(self, micro_batch: MicroBatch) -> jax.Array | np.ndarray:
        """float32 [rows, length]: log-prob of each token; 0 on the first token of a sequence and on padding."""
        ...


@runtime_checkable
class Reward(Protocol):
    """Judges the completions of one prompt."""

    def __call__(self, prompt: Prompt, completions: Sequence[str]) -> Sequence[float]:
        """One finite number per completion, in order."""
        ...


@runtime_checkable
class PromptSource(Protocol):
    """Prompts by position; the runtime owns the cursor, so resuming seeks instead of replaying."""

    def __len__(self) -> int:
        """How many prompts there are; at least 1."""
        ...

    def __getitem__(self, index: int) -> Prompt:
        """The prompt at ``index`` in 0..len-1, the same each time it is asked."""
        ...


@runtime_checkable
class Tokenizer(Protocol):
    """Text to token ids and back."""

    vocab_size: int
    pad_id: int
    stop_id: int

    def encode(self, text: str) -> Sequence[int]:
        """Token ids of a prompt, whatever start token the model expects included."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of completion tokens; stop and pad tokens are left out."""
        ...


@runtime_checkable
class Advantages(Protocol):
    """Turns the rewards of the step's groups into advantages.

    Optional: an attribute ``scope``, "group" or "step". A program that streams its groups calls with one at a time, and
    refuses a part that says "step": it needs all of them at once.
    """

    def __call__(self, groups: Sequence[Group]) -> Sequence[Group]:
        """The same groups in the same order, with ``advantages`` set."""
        ...


@runtime_checkable
class Callback(Protocol):
    """User code at the borders of a step. A part with one of the two methods will do.

    A resumed run calls again what stood behind the checkpoint, so a call may come twice over the life of a run.
    """

    def on_step_begin(self, step: int) -> None:
        """Called first in step ``step``."""
        ...

    def on_step_end(self, step: int, metrics: Mapping[str, float]) -> None:
        """Called last in step ``step``, with its metrics."""
        ...


@runtime_checkable
class Tracker(Protocol):
    """Where metrics go.

    Optional: ``rewind(step, last_record)`` is called when a run is resumed: the records behind ``step`` (-1 for all)
    are void, and that of ``step`` is ``last_record``; a tracker without it gets some steps twice.
    ``phases(step, seconds)`` is told the time of each kind of op after each step.
    """

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of one step; ``step`` is the step they belong to."""
        ...

    def close(self) -> None:
        """Flush and release; called once."""
        ...


@runtime_checkable
class Checkpointable(Protocol):
    """A part with state of its own that belongs in a checkpoint.

    The trainer needs these methods when the program saves; any other part that has them is saved beside it.
    """

    def save_checkpoint(self, directory: Path) -> None:
        """Write the state below ``directory``, complete and on disk when it returns."""
        ...

    def restore_checkpoint(self, directory: Path) -> None:
        """Read back what ``save_checkpoint`` wrote there."""
        ...
