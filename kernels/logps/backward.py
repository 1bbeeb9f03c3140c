"""The backward pass, as one device runs it: gradients of hidden states and head from cotangents by token."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from steptrace_kernels.logps import tile
from steptrace_kernels.logps.blocks import each_block, loader, returned, shards
from steptrace_kernels.logps.forward import Saved
from steptrace_kernels.logps.head import Head, Logps, RMSNorm
from steptrace_kernels.logps.setting import Setting
from steptrace_kernels.logps.shifts import shift_left
from steptrace_kernels.logps.tokens import (
    Held,
    Start,
    by_place,
    by_token,
    chunk_of,
    gathered_once,
    hold,
    own_rows,
    put_chunk,
    reader,
    sum_from_group,
    sweep,
    to_group,
)
from steptrace_kernels.logps.vocab import lane_ids


class HiddenGradient(NamedTuple):
    """Gradients on the token side, while they are being made.

    Attributes:
      rows: [places, features] of hidden states, done; where hidden states are resident [members, places, features] of
        normed states, a device's own share of the sum.
      norm: of the norm, or None.
    """

    rows: jax.Array
    norm: RMSNorm | None


class SlabGradient(NamedTuple):
    """Gradients of a slab, summed over the tokens seen so far."""

    weight: jax.Array
    bias: jax.Array | None


def backward(setting: Setting, hidden: jax.Array, head: Head, saved: Saved, by: Logps) -> tuple[jax.Array, Head]:
    """Gradients of this device's shards, from cotangents of the results by token."""
    held = hold(setting, hidden, head.norm, saved.aligned)
    cotangents = shift_left(jnp.stack(by), setting.layout.sequence)
    pulls = tile.pull(saved.soft, saved.aligned.target, setting.vocab, *cotangents)
    pulls = jnp.stack([by_place(held, x.reshape(-1), fill=0) for x in pulls], axis=-1)
    pulls = tile.Pull(*jnp.moveaxis(to_group(setting, pulls[None]), -1, 0))
    everything = saved.hidden if setting.keeps_hidden else gathered_once(setting, held)
    read = reader(setting, held, everything)

    def compute(carry: HiddenGradient, slab: tile.Slab) -> tuple[HiddenGradient, SlabGradient]:
        def step(state: tuple[HiddenGradient, SlabGradient], start: Start, size: int) -> Any:
            target, temperature = chunk_of(held.group, start, size)
            x = read(start, size)
            z, slope = tile.logits(x, slab, temperature, setting.formula)
            g = tile.logit_gradient(z, slope, slab, target, chunk_of(pulls, start, size))
            return absorb(setting, held, state, slab, x, g, start)

        return sweep(setting, held, step, (carry, no_slab_gradient(setting, slab)))

    tokens_side, table_side = _over_slabs(setting, head, saved, compute, no_hidden_gradient(setting, held))
    return finish(setting, held, hidden, head, tokens_side, table_side)


def _over_slabs(setting: Setting, head: Head, saved: Saved, compute: Any, carry: HiddenGradient) -> Any:
    """``compute`` on the slab that was kept, or on each block of it; gradients of the table go home block by block."""
    if saved.slab is not None:
        slab = tile.Slab(*saved.slab, lane_ids(setting.table_route, 0))
        carry, gradient = compute(carry, slab)
        return carry, jax.tree.map(lambda x: x[None], returned(setting, *gradient))
    # Without the barrier the compiler would merge this gather with the forward pass's, and keep the slab between.
    head, carry = lax.optimization_barrier((head, carry))
    load = loader(setting, head)
    blocks = setting.strategy.vocab_blocks
    shapes = jax.eval_shape(lambda: returned(setting, *no_slab_gradient(setting, load(0))))
    stored = jax.tree.map(lambda x: jnp.zeros((blocks, *x.shape), x.dtype), shapes)

    def store(stored: Any, gradient: SlabGradient, block: Start) -> Any:
        home = returned(setting, *gradient)
        return jax.tree.map(lambda a, x: lax.dynamic_update_index_in_dim(a, x, block, 0), stored, home)

    return each_block(setting, load, compute, store, carry, stored)


def no_hidden_gradient(setting: Setting, held: Held) -> HiddenGradient:
    """Zeros to begin with."""
    places, features = held.target.size, held.hidden.shape[1]
    if setting.resident:
        rows = jnp.zeros((setting.members, places, features), setting.formula.sums)
    else:
        rows = jnp.zeros((places, features), held.hidden.dtype)
    return HiddenGradient(rows, jax.tree.map(jnp.zeros_like, held.norm))


def no_slab_gradient(setting: Setting, slab: tile.Slab) -> SlabGradient:
    """Zeros to begin with, in the dtype of sums."""
    sums = setting.formula.sums
    bias = None if slab.bias is None else jnp.zeros(slab.bias.shape, sums)
    return SlabGradient(jnp.zeros(slab.weight.shape, sums), bias)


def absorb(
    setting: Setting,
    held: Held,
    state: tuple[HiddenGradient, SlabGradient],
    slab: tile.Slab,
    x: jax.Array,
    g: jax.Array,
    start: Start,
) -> tuple[HiddenGradient, SlabGradient]:
    """``state`` with the gradients of a chunk: of normed states ``x`` and the slab, by logits' gradients ``g``."""
    tokens_side, table_side = state
    weight = table_side.weight + setting.formula.dot(g, x, (0, 0))
    bias = None if table_side.bias is None else table_side.bias + jnp.sum(g, axis=0)
    dx = setting.formula.dot(g, slab.weight, (1, 0))
    if setting.resident:
        size = dx.shape[0] // setting.members
        rows = put_chunk(tokens_side.rows, chunk_of(tokens_side.rows, start, size) + dx, start)
        return HiddenGradient(rows, tokens_side.norm), SlabGradient(weight, bias)
    rows, norm = _before_norm(setting, held, sum_from_group(setting, dx), start)
    rows = lax.dynamic_update_slice_in_dim(tokens_side.rows, rows, start, 0)
    return HiddenGradient(rows, jax.tree.map(jnp.add, tokens_side.norm, norm)), SlabGradient(weight, bias)


def _before_norm(setting: Setting, held: Held, dx: jax.Array, start: Start) -> tuple[jax.Array, RMSNorm | None]:
    """Gradients of hidden states and norm from those of normed states [size, features], ``x`` being this device's."""
    rows, live = own_rows(held, start, dx.shape[0])
    _, pullback = jax.vjp(
        lambda rows, norm: tile.normed(rows, live, norm, setting.formula), rows.astype(dx.dtype), held.norm
    )
    rows, norm = pullback(dx)
    return rows.astype(held.hidden.dtype), norm


def finish(
    setting: Setting, held: Held, hidden: jax.Array, head: Head, tokens_side: HiddenGradient, table_side: Any
) -> tuple[jax.Array, Head]:
    """Gradients as the arguments are shaped, from those by place and those by block."""
    rows, norm = tokens_side
    if setting.resident:
        summed = sum_from_group(setting, rows.reshape(-1, rows.shape[-1]))
        rows, norm = _before_norm(setting, held, summed, 0)
    if norm is not None:
        axes = setting.layout.tokens
        scale = lax.psum(norm.scale, axes) if axes else norm.scale
        norm = RMSNorm(scale.astype(head.norm.scale.dtype), norm.epsilon)
    weight, bias = shards(setting, *table_side)
    bias = None if bias is None else bias.astype(head.bias.dtype)
    return by_token(held, rows, axis=0).reshape(hidden.shape), Head(weight, bias, head.orientation, norm)
