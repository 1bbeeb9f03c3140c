"""All that is static about a call: what the two passes are compiled for."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from steptrace_kernels.logps.head import Axes, Head, Layout, Strategy
from steptrace_kernels.logps.mesh import count, sizes
from steptrace_kernels.logps.tile import Formula
from steptrace_kernels.logps.vocab import Route


@dataclass(frozen=True)
class Setting:
    """Hashable, so that it is a static argument; shapes are those of whole arrays, padded to divide over the mesh.

    Attributes:
      mesh: the mesh.
      layout: what is sharded over which of its axes.
      strategy: how the work is split.
      formula: what is static about the logits.
      vocab: entries of the vocabulary; the table may have more rows, of padding.
      features: of hidden states; the table may have more, of padding.
      rows: of the whole table, with padding.
      orientation: of the table as it is stored.
      shape: rows and length of the tokens.
      chunk: tokens of its own that a device takes at a time.
      skips: whether tokens that are not needed are left out, and not computed for nothing.
      hidden_sums: dtype in which gradients of hidden states are summed over devices.
      weight_dtype: dtype of the table, and of its gradient.
    """

    mesh: Mesh | AbstractMesh
    layout: Layout
    strategy: Strategy
    formula: Formula
    vocab: int
    features: int
    rows: int
    orientation: str
    shape: tuple[int, int]
    chunk: int
    skips: bool
    hidden_sums: jnp.dtype
    weight_dtype: jnp.dtype

    @property
    def group(self) -> Axes:
        """Axes that split the vocabulary and shard tokens: their devices work on each other's tokens."""
        return tuple(axis for axis in self.strategy.vocab_axes if axis in self.layout.tokens)

    @property
    def idle(self) -> Axes:
        """Axes that split the vocabulary and shard no tokens: their devices have the same tokens."""
        return tuple(axis for axis in self.strategy.vocab_axes if axis not in self.layout.tokens)

    @property
    def members(self) -> int:
        """Devices in a group."""
        return count(sizes(self.mesh), self.group)

    @property
    def local_tokens(self) -> int:
        """Tokens that a device holds."""
        return self.shape[0] * self.shape[1] // count(sizes(self.mesh), self.layout.tokens)

    @property
    def resident(self) -> bool:
        """True where gradients of all a group's hidden states are added up over blocks, and go home after the last."""
        return self.strategy.vocab_blocks > 1

    @property
    def gathers_once(self) -> bool:
        """True where a group's hidden states are gathered all at the beginning of a pass, and not chunk by chunk."""
        return self.keeps_hidden or (bool(self.group) and self.resident)

    @property
    def keeps_hidden(self) -> bool:
        """True where the forward pass hands a group's hidden states to the backward pass."""
        return bool(self.group) and self.strategy.keep_hidden and not self.resident

    def keepable(self, vocab_axes: Axes) -> bool:
        """Whether hidden states could be kept with this split: some are gathered, and in the order they lie in."""
        return not self.skips and any(axis in self.layout.tokens for axis in vocab_axes)

    @property
    def keeps_slab(self) -> bool:
        """True where the forward pass hands its slab to the backward pass."""
        return self.strategy.vocab_blocks == 1 and not self.strategy.regather

    @property
    def table_route(self) -> Route:
        """The way of the table."""
        return self._route(self.features, self.layout.table_embed)

    @property
    def bias_route(self) -> Route:
        """The way of the bias: that of a table of one feature, which nothing shards."""
        return self._route(1, ())

    def _route(self, features: int, stored_embed: Axes) -> Route:
        axis_sizes = sizes(self.mesh)
        return Route(
            vocab=self.vocab,
            rows=self.rows // count(axis_sizes, self.layout.table_vocab),
            features=features,
            stored_vocab=self.layout.table_vocab,
            stored_embed=stored_embed,
            split=self.strategy.vocab_axes,
            tokens=self.layout.tokens,
            sizes=tuple(axis_sizes.items()),
            blocks=self.strategy.vocab_blocks,
            axis_by_axis=self.strategy.axis_by_axis,
        )

    @property
    def by_token(self) -> PartitionSpec:
        """Spec of arrays [rows, length]."""
        return PartitionSpec(self.layout.batch or None, self.layout.sequence or None)

    @property
    def by_group(self) -> PartitionSpec:
        """Spec of hidden states [members, places, features] that a group has gathered."""
        return PartitionSpec(None, tuple(axis for axis in self.layout.tokens if axis not in self.group) or None)

    @property
    def by_slab(self) -> PartitionSpec:
        """Spec of a slab that is handed from pass to pass, [lanes of all devices, ...]."""
        return PartitionSpec(self.strategy.vocab_axes or None)

    def head_specs(self, head: Head) -> Head:
        """Specs of the head's parameters, as a head."""
        vocab, embed = self.layout.table_vocab or None, self.layout.table_embed or None
        weight = (vocab, embed) if self.orientation == "vd" else (embed, vocab)
        return Head(
            weight=PartitionSpec(*weight),
            bias=None if head.bias is None else PartitionSpec(vocab),
            orientation=head.orientation,
            norm=None if head.norm is None else type(head.norm)(PartitionSpec(), head.norm.epsilon),
        )
