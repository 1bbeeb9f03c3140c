"""One-token shifts of sharded sequences, and what each position predicts.

``logp[i]`` belongs to token ``i`` and is made from hidden state ``i - 1``, which may lie on another device. Inside the
kernel everything is kept by *source*, the position of the hidden state; here is the way there and back. A ``roll`` of a
shard is no shift of the sequence: each device would hand its own first token to its own last position.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from steptrace_kernels.logps.head import Axes

NO_LOGP = -1
"""In the place of a target: nothing is to be computed here."""


def shift_left(x: jax.Array, axes: Axes) -> jax.Array:
    """``x[..., i + 1]`` at ``i`` for ``x`` [..., local length] sharded over ``axes``; 0 at the end."""
    return jnp.concatenate([x[..., 1:], _from_neighbour(x[..., :1], axes, step=1)], axis=-1)


def shift_right(x: jax.Array, axes: Axes) -> jax.Array:
    """``x[..., i - 1]`` at ``i`` for ``x`` [..., local length] sharded over ``axes``; 0 at the beginning."""
    return jnp.concatenate([_from_neighbour(x[..., -1:], axes, step=-1), x[..., :-1]], axis=-1)


def _from_neighbour(edge: jax.Array, axes: Axes, *, step: int) -> jax.Array:
    """The ``edge`` of the shard ``step`` further on, one collective-permute over all ``axes``; 0 past the ends."""
    if not axes:
        return jnp.zeros_like(edge)
    in_order, numbers = _numbered(axes)
    to = numbers[: len(numbers) - step] if step > 0 else numbers[-step:]
    come = numbers[step:] if step > 0 else numbers[:step]
    return lax.ppermute(edge, in_order, list(zip(come, to, strict=True)))


def _numbered(axes: Axes) -> tuple[Axes, list[int]]:
    """``axes`` as the mesh orders them, and the number there of each shard of the sequence, in the order of ``axes``.

    A collective-permute numbers devices in the order of the mesh, whatever order it is given.
    """
    in_order = tuple(axis for axis in jax.sharding.get_abstract_mesh().axis_names if axis in axes)
    numbers = np.arange(lax.axis_size(axes)).reshape([lax.axis_size(axis) for axis in in_order])
    return in_order, numbers.transpose([in_order.index(axis) for axis in axes]).reshape(-1).tolist()


def targets(
    tokens: jax.Array, vocab: int, axes: Axes, *, segment_ids: jax.Array | None, needed: jax.Array | None
) -> jax.Array:
    """What each hidden state predicts: int32 [rows, local length] by source.

    ``0..vocab-1`` is a token; ``vocab`` stands for one out of range; ``NO_LOGP`` where there is nothing to compute: the
    last position, the last of a segment, before padding (segment 0), and before a token that is not needed.
    """
    tokens = tokens if tokens.dtype.itemsize >= 4 else tokens.astype(jnp.int32)
    inside = (tokens >= 0) & (tokens < vocab)
    target = jnp.where(inside, tokens, vocab).astype(jnp.int32)
    if segment_ids is not None:
        same = (segment_ids == shift_right(segment_ids, axes)) & (segment_ids != 0)
        target = jnp.where(same, target, NO_LOGP)
    if needed is not None:
        target = jnp.where(needed, target, NO_LOGP)
    # The shift fills with 0, which is a token: what travels is one more.
    return shift_left(target - NO_LOGP, axes) + NO_LOGP
