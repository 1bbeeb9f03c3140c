"""What the log-prob head is given and what it gives back: the head, the layout, the strategy, the results."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import jax

Axes = tuple[str, ...]
"""Names of mesh axes, the slowest-varying first, as in an entry of a ``PartitionSpec``."""

_static = {"static": True}


class Logps(NamedTuple):
    """Results by token; each float32 [rows, length], float64 for float64 inputs.

    Attributes:
      logp: ``logp[r, i]`` is the log-prob of ``tokens[r, i]``; never above 0.
      entropy: in nats, of the distribution that ``tokens[r, i]`` was drawn from; never below 0. None if not asked for.
      lse: logsumexp of the logits of that distribution. None if not asked for.
    """

    logp: jax.Array
    entropy: jax.Array | None = None
    lse: jax.Array | None = None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RMSNorm:
    """A norm before the head: ``h * rsqrt(mean(h**2) + epsilon) * scale``, in float32 (Zhang and Sennrich 2019).

    Attributes:
      scale: [features]. Where a model stores it less 1, give the sum.
      epsilon: added to the mean square; static.
    """

    scale: jax.Array
    epsilon: float = field(default=1e-6, metadata=_static)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Head:
    """The parameters between hidden states and logits: a pytree, so that gradients are taken to it as a whole.

    Attributes:
      weight: the vocabulary table, [vocab, features] or [features, vocab] as ``orientation`` says.
      bias: [vocab] or None. An entry of -inf takes its token out of the distribution.
      orientation: ``"vd"`` as embeddings are stored, ``"dv"`` as kernels of dense layers are; static.
      norm: applied to hidden states first, or None.
    """

    weight: jax.Array
    bias: jax.Array | None = None
    orientation: Literal["vd", "dv"] = field(default="vd", metadata=_static)
    norm: RMSNorm | None = None


@dataclass(frozen=True)
class Layout:
    """Which mesh axes shard which dimension; dimensions that are not named here are whole on every device.

    Attributes:
      batch: axes over which rows of hidden states and tokens are sharded.
      sequence: axes over which positions are, in contiguous pieces.
      table_vocab: axes over which the vocabulary of the table, and the bias, are sharded.
      table_embed: axes over which the features of the table are sharded.
    """

    batch: Axes = ()
    sequence: Axes = ()
    table_vocab: Axes = ()
    table_embed: Axes = ()

    @property
    def tokens(self) -> Axes:
        """Axes that shard tokens: those of the batch, then those of the sequence."""
        return self.batch + self.sequence

    @property
    def table(self) -> Axes:
        """Axes that shard the table."""
        return self.table_vocab + self.table_embed


@dataclass(frozen=True)
class Strategy:
    """How the work is split. Every strategy gives the same results, up to the rounding of sums.

    Attributes:
      vocab_axes: mesh axes over which the vocabulary is split while logits are made. Over one that shards tokens,
        hidden states of a chunk are gathered, and their gradients scattered; over one that does not, no gather is
        needed, and gradients of hidden states are summed.
      vocab_blocks: the table is gathered and used in so many parts, one after the other.
      prefetch: with blocks, the next one is gathered while logits of this one are made.
      regather: the backward pass gathers the table again instead of keeping it. Blocks are always gathered again.
      keep_hidden: where hidden states are gathered, they are kept for the backward pass; else they are gathered again,
        chunk by chunk. Not where only needed tokens are taken. With blocks each pass gathers them at its beginning.
      axis_by_axis: one collective for each mesh axis, else one over all of them.
      chunk_tokens: tokens of its own that a device takes at a time; None for all of them, up to 1,024.
    """

    vocab_axes: Axes = ()
    vocab_blocks: int = 1
    prefetch: bool = False
    regather: bool = False
    keep_hidden: bool = False
    axis_by_axis: bool = True
    chunk_tokens: int | None = None
