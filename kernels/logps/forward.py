"""The forward pass, as one device runs it: from its shards to log-probs, entropies and lse of its tokens."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from steptrace_kernels.logps import tile
from steptrace_kernels.logps.blocks import each_block, loader
from steptrace_kernels.logps.head import Head, Logps
from steptrace_kernels.logps.setting import Setting
from steptrace_kernels.logps.shifts import shift_left, shift_right, targets
from steptrace_kernels.logps.tokens import (
    Aligned,
    Held,
    Start,
    by_token,
    chunk_of,
    gathered_once,
    hold,
    merge_from_group,
    put_chunk,
    reader,
    sweep,
)


class Inputs(NamedTuple):
    """The arrays of a call that belong to tokens, [rows, length] each.

    Attributes:
      tokens: token ids.
      segment_ids: which sequence of its row a token belongs to, 0 for padding; None for one sequence a row.
      needed: bool, whose log-probs are wanted; None for all.
      temperature: [rows, length], or a scalar, or None for 1.
    """

    tokens: jax.Array
    segment_ids: jax.Array | None
    needed: jax.Array | None
    temperature: jax.Array | None


class Saved(NamedTuple):
    """What the backward pass needs beside the arguments, by source.

    Attributes:
      aligned: what was predicted.
      soft: the softmax there.
      slab: weight and bias of the slab, where it is kept.
      hidden: hidden states of the group after the norm [members, places, features], where they are kept.
    """

    aligned: Aligned
    soft: tile.Softmax
    slab: tuple[jax.Array, jax.Array | None] | None
    hidden: jax.Array | None


def forward(setting: Setting, hidden: jax.Array, head: Head, inputs: Inputs) -> tuple[Logps, Saved]:
    """Results by token and what to keep; all arrays are this device's shards."""
    aligned = align(setting, inputs)
    held = hold(setting, hidden, head.norm, aligned)
    everything = gathered_once(setting, held)
    seen, slab = see(setting, held, head, everything)
    soft = tile.finish(merge_from_group(setting, seen), held.target, setting.vocab)
    soft = tile.Softmax(*(by_token(held, x).reshape(aligned.target.shape) for x in soft))
    kept = (slab.weight, slab.bias) if slab is not None and setting.keeps_slab else None
    saved = Saved(aligned, soft, kept, everything if setting.keeps_hidden else None)
    return results(setting, soft, aligned.target), saved


def align(setting: Setting, inputs: Inputs) -> Aligned:
    """From arrays by token to what each source predicts: the shift across devices."""
    axes = setting.layout.sequence
    target = targets(inputs.tokens, setting.vocab, axes, segment_ids=inputs.segment_ids, needed=inputs.needed)
    temperature = inputs.temperature
    if temperature is not None and temperature.ndim:
        temperature = jnp.where(target >= 0, shift_left(temperature, axes), 1)
    return Aligned(target, temperature)


def has_logp(inputs: Inputs) -> jax.Array:
    """Bool [rows, length]: which tokens of whole arrays have a log-prob, in or out of range."""
    source = targets(inputs.tokens, 0, (), segment_ids=inputs.segment_ids, needed=inputs.needed)
    return shift_right(source >= 0, ())


def see(setting: Setting, held: Held, head: Head, everything: jax.Array | None) -> tuple[tile.Stats, tile.Slab | None]:
    """Stats [members, places] of this device's slab for its group's tokens; and the slab, if it is in one block."""
    load, read = loader(setting, head), reader(setting, held, everything)
    seen = tile.nothing_seen(held.group.target.shape, setting.formula.sums)
    if setting.strategy.vocab_blocks == 1:
        slab = load(0)
        return see_slab(setting, held, read, slab, seen), slab
    seen, _ = each_block(
        setting,
        load,
        compute=lambda seen, slab: (see_slab(setting, held, read, slab, seen), None),
        store=lambda stored, _, __: stored,
        carry=seen,
        stored=None,
    )
    return seen, None


def see_slab(setting: Setting, held: Held, read: Any, slab: tile.Slab, seen: tile.Stats) -> tile.Stats:
    """``seen``, and the lanes of ``slab`` as well."""

    def step(seen: tile.Stats, start: Start, size: int) -> tile.Stats:
        target, temperature = chunk_of(held.group, start, size)
        z, _ = tile.logits(read(start, size), slab, temperature, setting.formula)
        new = tile.stats(z, slab, target)
        if setting.strategy.vocab_blocks > 1:
            new = tile.merge(jax.tree.map(lambda a, b: jnp.stack([a, b]), chunk_of(seen, start, size), new))
        return put_chunk(seen, new, start)

    return sweep(setting, held, step, seen)


def results(setting: Setting, soft: tile.Softmax, target: jax.Array) -> Logps:
    """By token, from a softmax by source: one shift across devices for all three."""
    lse = jnp.where(target >= 0, soft.top + soft.log_total, 0)
    return Logps(*shift_right(jnp.stack([soft.logp, soft.entropy, lse]), setting.layout.sequence))
