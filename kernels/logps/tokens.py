"""The tokens of a device: which come when, in chunks; and the exchange within a group that shares a vocabulary.

A group is the devices along the axes that shard tokens and split the vocabulary as well. Each of them computes
with its slab for the tokens of all; hidden states go to all of the group, and four numbers a token come back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from steptrace_kernels.logps import tile
from steptrace_kernels.logps.head import RMSNorm
from steptrace_kernels.logps.setting import Setting

Start = jax.Array | int


class Aligned(NamedTuple):
    """What each hidden state predicts and how, by source: [local rows, local length].

    Attributes:
      target: see :func:`steptrace_kernels.logps.shifts.targets`.
      temperature: by source, or a scalar, or None for 1.
    """

    target: jax.Array
    temperature: jax.Array | None


class Held(NamedTuple):
    """The tokens of a device, ready to be taken in chunks. A *place* is a position in the order they are taken in.

    Attributes:
      hidden: [tokens, features], as they lie.
      norm: applied to them first, or None.
      places: int32 [places], the token at each place, or None for the order they lie in. Places beyond the last token
        repeat it, with nothing to compute.
      back: int32 [tokens], the place of each token, or None.
      count: how many tokens are taken; traced where only needed ones are.
      target: int32 [places].
      group: targets and temperatures of the whole group, [members, places]; a temperature may be a scalar or None.
    """

    hidden: jax.Array
    norm: RMSNorm | None
    places: jax.Array | None
    back: jax.Array | None
    count: jax.Array | int
    target: jax.Array
    group: Aligned


def hold(setting: Setting, hidden: jax.Array, norm: RMSNorm | None, aligned: Aligned) -> Held:
    """From hidden states [local rows, local length, features] and what they predict."""
    target, temperature = aligned.target.reshape(-1), aligned.temperature
    if norm is not None:
        norm = RMSNorm(norm.scale.astype(setting.formula.sums), norm.epsilon)
    places, back, count = _live_first(setting, target) if setting.skips else (None, None, setting.local_tokens)
    held = Held(hidden.reshape(-1, hidden.shape[-1]), norm, places, back, count, target, aligned)
    target = by_place(held, target, fill=-1)
    if temperature is not None and temperature.ndim:
        temperature = to_group(setting, by_place(held, temperature.reshape(-1), fill=1)[None])
    return held._replace(target=target, group=Aligned(to_group(setting, target[None]), temperature))


def _live_first(setting: Setting, target: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Places, back and count with those first that have something to compute; the others are not taken.

    All that split a vocabulary take as many: the largest number that one of them has.
    """
    dead = target < 0
    places = jnp.argsort(dead, stable=True).astype(jnp.int32)
    back = jnp.zeros_like(places).at[places].set(jnp.arange(places.size, dtype=jnp.int32))
    count = jnp.sum(~dead, dtype=jnp.int32)
    if setting.strategy.vocab_axes:
        count = lax.pmax(count, setting.strategy.vocab_axes)
    return jnp.pad(places, (0, -places.size % setting.chunk), mode="edge"), back, count


def by_place(held: Held, x: jax.Array, *, fill: float) -> jax.Array:
    """``x`` [..., tokens] by place; ``fill`` beyond the last token."""
    if held.places is None:
        return x
    real = jnp.arange(held.places.size) < held.hidden.shape[0]
    return jnp.where(real, jnp.take(x, held.places, axis=-1, mode="clip"), jnp.asarray(fill, x.dtype))


def by_token(held: Held, x: jax.Array, *, axis: int = -1) -> jax.Array:
    """Back from places to tokens, along ``axis``."""
    return x if held.back is None else jnp.take(x, held.back, axis=axis, mode="clip")


def sweep(setting: Setting, held: Held, step: Callable[[Any, Start, int], Any], carry: Any) -> Any:
    """``carry = step(carry, first place, places)`` for one chunk after the other; the last is as short as it must be.

    The number of chunks is dynamic where only needed tokens are taken; then the last is filled up.
    """
    size = setting.chunk
    full, left = divmod(held.count, size) if held.places is None else ((held.count + size - 1) // size, 0)
    carry = lax.fori_loop(0, full, lambda i, c: step(c, i * size, size), carry)
    return step(carry, full * size, left) if left else carry


def own_rows(held: Held, start: Start, size: int) -> tuple[jax.Array, jax.Array]:
    """Hidden states [size, features] at the places from ``start``, and which have something to compute."""
    live = lax.dynamic_slice_in_dim(held.target, start, size) >= 0
    if held.places is None:
        return lax.dynamic_slice_in_dim(held.hidden, start, size), live
    return jnp.take(held.hidden, lax.dynamic_slice_in_dim(held.places, start, size), axis=0, mode="clip"), live


def reader(setting: Setting, held: Held, everything: jax.Array | None) -> Callable[[Start, int], jax.Array]:
    """A function of a chunk that gives the group's hidden states after the norm, [members * size, features].

    From ``everything``, where they have been gathered; else it gathers them.
    """
    if everything is not None:
        return lambda start, size: chunk_of(everything, start, size)
    return lambda start, size: _gathered(setting, held, start, size)


def gathered_once(setting: Setting, held: Held) -> jax.Array | None:
    """All the group's hidden states after the norm [members, places, features], where they are gathered at once."""
    if not setting.gathers_once:
        return None
    return _gathered(setting, held, 0, held.target.size).reshape(setting.members, held.target.size, -1)


def _gathered(setting: Setting, held: Held, start: Start, size: int) -> jax.Array:
    rows, live = own_rows(held, start, size)
    rows = tile.normed(rows, live, held.norm, setting.formula)
    return to_group(setting, rows.astype(setting.formula.wire(rows.dtype)))


def chunk_of(x: Any, start: Start, size: int) -> Any:
    """Of each array [members, places, ...] the places from ``start``, as [members * size, ...]; scalars stay."""

    def one(a: jax.Array) -> jax.Array:
        return lax.dynamic_slice_in_dim(a, start, size, axis=1).reshape(-1, *a.shape[2:]) if a.ndim else a

    return jax.tree.map(one, x)


def put_chunk(whole: Any, chunk: Any, start: Start) -> Any:
    """The reverse of ``chunk_of``: each array with the places from ``start`` replaced."""

    def one(a: jax.Array, part: jax.Array) -> jax.Array:
        return lax.dynamic_update_slice_in_dim(a, part.reshape(a.shape[0], -1, *a.shape[2:]), start, axis=1)

    return jax.tree.map(one, whole, chunk)


def to_group(setting: Setting, x: jax.Array) -> jax.Array:
    """``x`` [n, ...] of each of the group, one after the other: [members * n, ...]."""
    for axis in reversed(setting.group):
        x = lax.all_gather(x, axis, axis=0, tiled=True)
    return x


def sum_from_group(setting: Setting, x: jax.Array) -> jax.Array:
    """Of ``x`` [members * n, ...] this device's [n, ...], summed over all that split the vocabulary."""
    if not setting.strategy.vocab_axes:
        return x
    x = x.astype(setting.hidden_sums)
    for axis in setting.group:
        x = lax.psum_scatter(x, axis, scatter_dimension=0, tiled=True)
    x = lax.psum(x, setting.idle) if setting.idle else x
    return x.astype(setting.formula.sums)


def merge_from_group(setting: Setting, seen: tile.Stats) -> tile.Stats:
    """Stats [n] of the whole vocabulary for own tokens, from those [members, n] of this slab for all the group's."""
    x = jnp.stack(seen, axis=1)
    shape = x.shape
    x = x.reshape(*(lax.axis_size(axis) for axis in setting.group), *shape[1:])
    for dim, axis in enumerate(setting.group):
        x = lax.all_to_all(x, axis, split_axis=dim, concat_axis=dim, tiled=True)
    x = x.reshape(shape)
    for axis in setting.idle:
        x = lax.all_gather(x, axis, axis=0, tiled=True)
    return tile.merge(tile.Stats(*jnp.moveaxis(x, 1, 0)))
