"""The table on its way: from the shard that is stored to the slab that is multiplied, and gradients back.

A stored shard has ``rows`` of the vocabulary and a part of the features. A slab has all features of ``1 / p`` of the
vocabulary, ``p`` being the devices along the axes the vocabulary is split over. Each mesh axis does one of these:

======================================  ===========================  ===============================
the axis                                on the way to the slab       with the gradient
======================================  ===========================  ===============================
splits; the table's vocabulary is       nothing: it is split         nothing
sharded over it
splits; the table's features are        all-to-all: rows away,       the all-to-all back
                                        features in
splits; the table is not                take its part of the rows    all-gather
does not split; shards the table        all-gather                   reduce-scatter, where it shards
                                                                     tokens; else take its part
does not split; the table is whole      nothing                      sum, where it shards tokens
======================================  ===========================  ===============================

Gathers and scatters go one axis at a time: over several at once, XLA makes an all-gather into an all-reduce of zeros
and one part, which moves twice as much. Inside, each axis that shards the table has a dimension of its own, so that any
order is right.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from steptrace_kernels.logps.head import Axes
from steptrace_kernels.logps.tile import PADDING


@dataclass(frozen=True)
class Route:
    """The way of one head parameter, [rows, features] on each device; every function of it runs inside a shard_map.

    Attributes:
      vocab: entries of the vocabulary; what a shard has beyond is padding.
      rows: rows of a stored shard.
      features: of the slab; what all shards have beyond is padding.
      stored_vocab: axes that shard its vocabulary.
      stored_embed: axes that shard its features.
      split: axes that the vocabulary is split over in use.
      tokens: axes that shard tokens, over which gradients are summed.
      sizes: devices along each axis, in the order of the mesh.
      blocks: parts in which the slab is made.
      axis_by_axis: one collective for each axis.
    """

    vocab: int
    rows: int
    features: int
    stored_vocab: Axes
    stored_embed: Axes
    split: Axes
    tokens: Axes
    sizes: tuple[tuple[str, int], ...]
    blocks: int
    axis_by_axis: bool

    @property
    def cut(self) -> Axes:
        """Axes among which the rows of a shard are divided, in the order of the mesh, which numbers devices so."""
        return tuple(axis for axis, _ in self.sizes if axis in self.split and axis not in self.stored_vocab)

    @property
    def piece(self) -> int:
        """Rows of a shard that are in one block on one device, padded up."""
        return -(-self.rows // (self.blocks * self.devices(self.cut)))

    @property
    def lanes(self) -> int:
        """Rows of a block of the slab."""
        return self.piece * self.devices(tuple(axis for axis in self.stored_vocab if axis not in self.split))

    def devices(self, axes: Axes) -> int:
        """Devices along all of ``axes``."""
        table = dict(self.sizes)
        return math.prod(table[axis] for axis in axes)

    def stages(self, stored: Axes) -> tuple[Axes, ...]:
        """Groups of axes of ``stored`` that are gathered together, the fastest-varying first."""
        gathered = tuple(axis for axis in stored if axis not in self.split)
        return tuple((axis,) for axis in reversed(gathered)) if self.axis_by_axis else (gathered,) if gathered else ()


def pack(route: Route, shard: jax.Array) -> jax.Array:
    """A shard [rows, features] as [blocks, rows of a block, features], padded with zeros."""
    rows = route.piece * route.devices(route.cut)
    padded = jnp.pad(shard, ((0, rows * route.blocks - route.rows), (0, 0)))
    return padded.reshape(route.blocks, rows, shard.shape[-1])


def unpack(route: Route, blocks: jax.Array) -> jax.Array:
    """The shard [rows, features] that ``pack`` made into ``blocks``."""
    return blocks.reshape(-1, blocks.shape[-1])[: route.rows]


def lane_ids(route: Route, block: jax.Array | int) -> jax.Array:
    """int32 [lanes]: the vocabulary entry of each row of this device's block of the slab."""
    shard = jnp.zeros((), jnp.int32)
    for axis in route.stored_vocab:
        size = route.devices((axis,))
        here = lax.axis_index(axis) if axis in route.split else jnp.arange(size)
        shard = (shard[..., None] * size + here) if axis not in route.split else shard * size + here
    part = jnp.asarray(block, jnp.int32)
    for axis in route.cut:
        part = part * route.devices((axis,)) + lax.axis_index(axis)
    row = part * route.piece + jnp.arange(route.piece, dtype=jnp.int32)
    ids = shard.reshape(-1, 1) * route.rows + row
    return jnp.where((row < route.rows) & (ids < route.vocab), ids, PADDING).astype(jnp.int32).reshape(-1)


def fetch(route: Route, blocks: jax.Array, block: jax.Array | int) -> jax.Array:
    """A block of the slab [lanes, all features], from a packed shard."""
    x = lax.dynamic_index_in_dim(blocks, block, keepdims=False)
    x = _exchanged(route, x.reshape(*(route.devices((axis,)) for axis in route.cut), route.piece, -1))
    before = len(route.stored_vocab)
    x = x.reshape(*[1] * before, *x.shape)
    for stored, first in ((route.stored_embed, before + 1), (route.stored_vocab, 0)):
        for group in route.stages(stored):
            x = _gather(route, x, group, [first + stored.index(axis) for axis in group])
    return x.reshape(route.lanes, -1)[:, : route.features]


def give_back(route: Route, slab: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """The gradient of a packed shard's block [rows of a block, features], from that of the slab.

    ``slab`` holds each device's own sum over the tokens it saw, in the dtype of sums; the sum over devices is in that
    dtype too, and what is left to move then is rounded to ``dtype``.
    """
    inner = [1 if axis in route.split else route.devices((axis,)) for axis in route.stored_vocab]
    outer = [route.devices((axis,)) for axis in route.stored_embed]
    before = len(inner)
    slab = jnp.pad(slab, ((0, 0), (0, -route.features % route.devices(route.stored_embed))))
    x = slab.reshape(*inner, route.piece, *outer, -1)
    for stored, first in ((route.stored_vocab, 0), (route.stored_embed, before + 1)):
        for group in reversed(route.stages(stored)):
            x = _scatter(route, x, group, [first + stored.index(axis) for axis in group])
    rest = [a for a in route.tokens if a not in (*route.split, *route.stored_vocab, *route.stored_embed)]
    x = (lax.psum(x, tuple(rest)) if rest else x).astype(dtype)
    return _exchanged_back(route, x.reshape(x.shape[before:])).reshape(route.piece * route.devices(route.cut), -1)


def _exchanged(route: Route, x: jax.Array) -> jax.Array:
    """Own rows [piece, of each of ``stored_embed``, features], from those of all of ``cut`` [of each, piece, features].

    Over the axes that shard features it is one all-to-all: axis by axis, rows would travel more than once.
    """
    swap = [axis for axis in route.cut if axis in route.stored_embed]
    for dim, axis in enumerate(route.cut):
        if axis not in swap:
            x = _own_part(route, x, axis, dim)
    if swap:
        flat = x.reshape(route.devices(tuple(swap)), route.piece, x.shape[-1])
        x = lax.all_to_all(flat, tuple(swap), split_axis=0, concat_axis=0, tiled=True)
    x = x.reshape(*(route.devices((axis,)) for axis in swap), route.piece, x.shape[-1])
    order = [swap.index(axis) for axis in route.stored_embed if axis in swap]
    x = x.transpose(len(swap), *order, len(swap) + 1)
    each = [route.devices((axis,)) if axis in swap else 1 for axis in route.stored_embed]
    return x.reshape(route.piece, *each, x.shape[-1])


def _exchanged_back(route: Route, x: jax.Array) -> jax.Array:
    """The reverse of ``_exchanged``, with rows of all where each had taken its part of what all have."""
    swap = [axis for axis in route.cut if axis in route.stored_embed]
    order = [axis for axis in route.stored_embed if axis in swap]
    x = x.reshape(route.piece, *(route.devices((axis,)) for axis in order), x.shape[-1])
    x = x.transpose(*(1 + order.index(axis) for axis in swap), 0, len(swap) + 1)
    if swap:
        flat = x.reshape(route.devices(tuple(swap)), route.piece, x.shape[-1])
        x = lax.all_to_all(flat, tuple(swap), split_axis=0, concat_axis=0, tiled=True)
    each = [route.devices((axis,)) if axis in swap else 1 for axis in route.cut]
    x = x.reshape(*each, route.piece, x.shape[-1])
    for dim, axis in enumerate(route.cut):
        if axis not in swap:
            x = lax.all_gather(x, axis, axis=dim, tiled=True)
    return x


def _gather(route: Route, x: jax.Array, axes: Axes, dims: list[int]) -> jax.Array:
    """All-gather over ``axes`` into the dimensions ``dims``, which have length 1."""
    if len(axes) == 1:
        return lax.all_gather(x, axes[0], axis=dims[0], tiled=True)
    x = lax.all_gather(x, axes)
    x = x.reshape(*(route.devices((axis,)) for axis in axes), *x.shape[1:])
    for done, dim in enumerate(dims):
        left = len(axes) - done
        x = jnp.moveaxis(x.squeeze(left + dim), 0, left - 1 + dim)
    return x


def _scatter(route: Route, x: jax.Array, axes: Axes, dims: list[int]) -> jax.Array:
    """The reverse of ``_gather``: of each dimension the own part, summed over those of ``axes`` that shard tokens."""
    for axis, dim in zip(axes, dims, strict=True):
        if axis not in route.tokens:
            x = _own_part(route, x, axis, dim)
    axes_dims = [(axis, dim) for axis, dim in zip(axes, dims, strict=True) if axis in route.tokens]
    if len(axes_dims) <= 1:
        for axis, dim in axes_dims:
            x = lax.psum_scatter(x, axis, scatter_dimension=dim, tiled=True)
        return x
    axes, dims = tuple(axis for axis, _ in axes_dims), [dim for _, dim in axes_dims]
    shape = [1 if dim in dims else size for dim, size in enumerate(x.shape)]
    x = jnp.moveaxis(x, dims, range(len(dims)))
    x = x.reshape(route.devices(axes), *x.shape[len(dims) :])
    return lax.psum_scatter(x, axes, scatter_dimension=0).reshape(shape)


def _own_part(route: Route, x: jax.Array, axis: str, dim: int) -> jax.Array:
    """The part of dimension ``dim`` that is this device's along ``axis``."""
    size = x.shape[dim] // route.devices((axis,))
    return lax.dynamic_slice_in_dim(x, lax.axis_index(axis) * size, size, dim)
