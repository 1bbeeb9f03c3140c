"""Attention pieces of the decoder: rotary positions, masked attention, and the key-value cache."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

_MASKED = -1e30  # finite, so that a row in which nothing may be attended to stays finite


class KVCache(NamedTuple):
    """Keys and values of everything decoded so far, one entry per layer.

    Attributes:
      keys: per layer [rows, capacity, heads, head_dim], rotated already.
      values: per layer [rows, capacity, heads, head_dim].
      valid: bool [rows, capacity], the slots that may be attended to.
    """

    keys: tuple[jax.Array, ...]
    values: tuple[jax.Array, ...]
    valid: jax.Array

    def repeat(self, samples: int) -> KVCache:
        """Each row ``samples`` times in a run: [rows * samples, ...]."""
        repeated: KVCache = jax.tree.map(lambda leaf: jnp.repeat(leaf, samples, axis=0), self)
        return repeated


def rotary_angles(positions: jax.Array, head_dim: int, theta: float) -> jax.Array:
    """Angles of the rotary embedding (RoFormer, Su et al. 2021).

    Args:
      positions: integers [rows, length], 0 at the first token of each sequence.
      head_dim: features of one head, even.
      theta: base of the wavelengths.

    Returns:
      float32 [rows, length, head_dim / 2].
    """
    frequencies = theta ** (-jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim)
    return positions[..., None].astype(jnp.float32) * frequencies


def rotate(x: jax.Array, angles: jax.Array) -> jax.Array:
    """Turn feature pairs (i, i + head_dim/2) of ``x`` [rows, length, heads, head_dim] by ``angles``, in float32."""
    cos, sin = jnp.cos(angles)[:, :, None, :], jnp.sin(angles)[:, :, None, :]
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cos - second * sin, first * sin + second * cos], axis=-1)
    return turned.astype(x.dtype)


def attend(query: jax.Array, keys: jax.Array, values: jax.Array, mask: jax.Array) -> jax.Array:
    """Scaled dot-product attention with float32 scores.

    Args:
      query: [rows, queries, heads, head_dim].
      keys: [rows, slots, heads, head_dim].
      values: [rows, slots, heads, head_dim].
      mask: bool [rows, queries, slots], True where a query may attend.

    Returns:
      [rows, queries, heads, head_dim] in the dtype of ``values``.
    """
    scale = query.shape[-1] ** -0.5
    scores = jnp.einsum("rqhd,rkhd->rhqk", query, keys, preferred_element_type=jnp.float32) * scale
    weights = jax.nn.softmax(jnp.where(mask[:, None], scores, _MASKED), axis=-1)
    return jnp.einsum("rhqk,rkhd->rqhd", weights.astype(values.dtype), values)


def packed_mask(segment_ids: jax.Array) -> jax.Array:
    """Who may attend to whom in packed rows: earlier or same place, same segment, no padding.

    Args:
      segment_ids: int [rows, length], 0 is padding.

    Returns:
      bool [rows, length, length], query by key.
    """
    length = segment_ids.shape[1]
    causal = jnp.tril(jnp.ones((length, length), bool))
    same = segment_ids[:, :, None] == segment_ids[:, None, :]
    return causal & same & (segment_ids != 0)[:, None, :]
