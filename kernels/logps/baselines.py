"""The same results without the kernel: the chunked head as train loops have it, left to the compiler to shard.

For comparison, and to fall back to. Each chunk is recomputed in the backward pass, gradients are those of automatic
differentiation, so that the table's gradient is accumulated, and summed over devices, in the dtype of the table.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from steptrace_kernels.logps import tile
from steptrace_kernels.logps.forward import Inputs
from steptrace_kernels.logps.head import Head, Layout, Logps, Strategy
from steptrace_kernels.logps.mesh import count, sizes
from steptrace_kernels.logps.shifts import shift_left, shift_right, targets
from steptrace_kernels.logps.tile import Formula

SEED = Strategy(vocab_axes=(), axis_by_axis=False)
"""The kernel's plainest setting: each device gathers the whole table, by one collective over all axes."""


def chunked(hidden: jax.Array, head: Head, inputs: Inputs, formula: Formula, chunk: int, *, pieces: int = 1) -> Logps:
    """Log-probs, entropies and lse [rows, length] by a rematerialised scan over chunks of ``chunk`` positions.

    With ``pieces``, as many as the sequence has shards, a chunk takes its positions from all of them alike, so that no
    device waits for another's.
    """
    rows, length = inputs.tokens.shape
    if not rows * length:
        return Logps(*[jnp.zeros((rows, length), formula.sums)] * 3)
    vocab = head.weight.shape[0 if head.orientation == "vd" else 1]
    target = targets(inputs.tokens, vocab, (), segment_ids=inputs.segment_ids, needed=inputs.needed)
    temperature = inputs.temperature
    if temperature is not None and temperature.ndim:
        temperature = jnp.where(target >= 0, shift_left(temperature, ()), 1)
    weight = head.weight if head.orientation == "vd" else head.weight.T
    chunk = min(chunk, -(-length // pieces))
    spare = -length % (pieces * chunk)

    def cut(x: jax.Array, fill: float = 0) -> jax.Array:
        x = jnp.pad(x, ((0, 0), (0, spare), *[(0, 0)] * (x.ndim - 2)), constant_values=fill)
        x = x.reshape(rows, pieces, -1, chunk, *x.shape[2:])
        return jnp.moveaxis(x, 2, 0)

    @jax.checkpoint
    def one(weight: jax.Array, hidden: jax.Array, target: jax.Array, warm: jax.Array | None) -> jax.Array:
        slab = tile.Slab(weight, head.bias, jnp.arange(vocab, dtype=jnp.int32))
        x = tile.normed(hidden, target >= 0, head.norm, formula).astype(formula.compute)
        z, _ = tile.logits(x, slab, warm, formula)
        soft = tile.finish(tile.stats(z, slab, target), target, vocab)
        lse = jnp.where(target >= 0, soft.top + soft.log_total, 0)
        logp = jnp.where(jnp.isneginf(soft.logp), -jnp.inf, soft.logp) * jnp.where(target == vocab, jnp.nan, 1)
        return jnp.stack([logp, soft.entropy, lse])

    by_position = temperature is not None and temperature.ndim
    parts = (cut(hidden), cut(target, -1), cut(temperature, 1) if by_position else None)

    def step(_: None, part: tuple[jax.Array, jax.Array, jax.Array | None]) -> tuple[None, jax.Array]:
        return None, one(weight, part[0], part[1], part[2] if by_position else temperature)

    _, out = lax.scan(step, None, parts)
    out = jnp.moveaxis(out, 0, 3).reshape(3, rows, length + spare)[..., :length]
    return Logps(*shift_right(out, ()))


def replicated(head: Head, mesh: Mesh | AbstractMesh) -> Head:
    """The head gathered once on every device: the first of the two lines that help the chunked head most."""
    everywhere = NamedSharding(mesh, PartitionSpec())
    return jax.tree.map(lambda x: lax.with_sharding_constraint(x, everywhere), head)


def fixed(
    hidden: jax.Array,
    head: Head,
    inputs: Inputs,
    formula: Formula,
    chunk: int,
    *,
    mesh: Mesh | AbstractMesh,
    layout: Layout,
) -> Logps:
    """``chunked`` with both of them: the head gathered once, and chunks taken inside each shard of the sequence."""
    pieces = count(sizes(mesh), layout.sequence)
    return chunked(hidden, replicated(head, mesh), inputs, formula, chunk, pieces=pieces)
