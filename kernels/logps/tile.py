"""The mathematics of one tile: some tokens against a part of the vocabulary, forward and its gradient by hand.

For a hidden state ``x`` the logit of entry ``j`` is ``z_j = cap(logit_scale * (x . w_j + b_j)) / temperature`` with
``cap(r) = soft_cap * tanh(r / soft_cap)``, and -inf where ``b_j`` is -inf or ``j`` is a padding lane: masked after the
cap, which would make a -inf finite. A vocabulary is seen in parts, so a token's sums are kept relative to the largest
logit so far (the online softmax of Milakov and Gimelshein 2018), four numbers a token, which ``merge`` joins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from steptrace_kernels.logps.head import RMSNorm

PADDING = -2
"""The id of a lane that is no vocabulary entry; no target has it."""


@dataclass(frozen=True)
class Formula:
    """What is static about the formula.

    Attributes:
      soft_cap: bound of the logits, or None.
      logit_scale: factor on them, before the cap.
      compute: dtype of the operands of matmuls.
      sums: dtype of logits, of every sum, and of results.
    """

    soft_cap: float | None
    logit_scale: float | None
    compute: jnp.dtype
    sums: jnp.dtype

    def wire(self, dtype: jnp.dtype) -> jnp.dtype:
        """In which dtype operands of ``dtype`` travel: rounded before where they are rounded anyway."""
        return dtype if dtype.itemsize <= self.compute.itemsize else self.compute

    def dot(self, a: jax.Array, b: jax.Array, contract: tuple[int, int]) -> jax.Array:
        """Matmul over dimension ``contract[0]`` of ``a`` and ``contract[1]`` of ``b``, accumulated in ``sums``.

        A logit gradient is rounded to bfloat16 before it meets operands of that dtype, not to float16, whose smallest
        number is larger than many probabilities.
        """
        low = a.dtype == b.dtype == self.compute or self.compute == jnp.bfloat16
        dtype = self.compute if low else self.sums
        exact = None if dtype.itemsize < 4 else lax.Precision.HIGHEST
        dims = (((contract[0],), (contract[1],)), ((), ()))
        return lax.dot_general(
            a.astype(dtype), b.astype(dtype), dims, precision=exact, preferred_element_type=self.sums
        )


class Slab(NamedTuple):
    """A part of the vocabulary, whole in features.

    Attributes:
      weight: [lanes, features].
      bias: [lanes] or None.
      ids: int32 [lanes], the vocabulary entry of each lane; ``PADDING`` where there is none.
    """

    weight: jax.Array
    bias: jax.Array | None
    ids: jax.Array


class Stats(NamedTuple):
    """What a token knows of the logits seen so far; arrays of one shape.

    Attributes:
      top: the largest logit, -inf if there is none.
      total: sum of ``exp(z - top)``.
      moment: sum of ``exp(z - top) * (z - top)``.
      target: the logit of the token itself; 0 where it was not among them.
    """

    top: jax.Array
    total: jax.Array
    moment: jax.Array
    target: jax.Array


class Softmax(NamedTuple):
    """A finished softmax by token. ``top`` and ``log_total`` stay apart: their sum would cost digits of ``z - lse``."""

    top: jax.Array
    log_total: jax.Array
    logp: jax.Array
    entropy: jax.Array


def normed(hidden: jax.Array, live: jax.Array, norm: RMSNorm | None, formula: Formula) -> jax.Array:
    """Hidden states [..., features] after the norm, in their own dtype; 0 for tokens that are not ``live``.

    What stands at such a place may be no number; from here on it can poison nothing.
    """
    hidden = jnp.where(live[..., None], hidden, 0)
    if norm is None:
        return hidden
    x = hidden.astype(formula.sums)
    x *= lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + norm.epsilon)
    return (x * norm.scale.astype(formula.sums)).astype(hidden.dtype)


def logits(
    x: jax.Array, slab: Slab, temperature: jax.Array | None, formula: Formula
) -> tuple[jax.Array, jax.Array | float]:
    """Logits [..., lanes] of ``x`` [..., features], and their derivative by the matmul's result.

    ``temperature`` is a scalar, [...], or None for 1; one that is not above 0 makes its tokens NaN.
    """
    raw = formula.dot(x.astype(formula.compute), slab.weight.astype(formula.compute), (x.ndim - 1, 1))
    dead = slab.ids == PADDING
    if slab.bias is not None:
        raw += slab.bias.astype(formula.sums)
        dead |= jnp.isneginf(slab.bias)
    slope: jax.Array | float = 1.0
    if formula.logit_scale is not None:
        raw, slope = raw * formula.logit_scale, formula.logit_scale
    if formula.soft_cap is not None:
        bent = jnp.tanh(raw / formula.soft_cap)
        raw, slope = bent * formula.soft_cap, slope * (1 - bent * bent)
    if temperature is not None:
        warm = jnp.where(temperature > 0, temperature, jnp.nan).astype(formula.sums)
        warm = warm if warm.ndim == 0 else warm[..., None]
        raw, slope = raw / warm, slope / warm
    return jnp.where(dead, -jnp.inf, raw), slope


def stats(z: jax.Array, slab: Slab, target: jax.Array) -> Stats:
    """Sums over the lanes of ``z`` [..., lanes], and the logit of ``target`` [...] if it is one of them."""
    top = lax.stop_gradient(jnp.max(z, axis=-1))
    live = ~jnp.isneginf(z)
    below = jnp.where(live, z - _finite(top)[..., None], 0)
    weight = jnp.where(live, jnp.exp(below), 0)
    own = slab.ids == target[..., None]
    return Stats(
        top, jnp.sum(weight, axis=-1), jnp.sum(weight * below, axis=-1), jnp.sum(jnp.where(own, z, 0), axis=-1)
    )


def nothing_seen(shape: tuple[int, ...], dtype: jnp.dtype) -> Stats:
    """The stats of no logits at all."""
    zero = jnp.zeros(shape, dtype)
    return Stats(zero - jnp.inf, zero, zero, zero)


def merge(parts: Stats) -> Stats:
    """Stats of the union, from stats of disjoint parts along the first dimension."""
    top = jnp.max(parts.top, axis=0)
    behind = jnp.where(jnp.isneginf(parts.top), 0, parts.top - _finite(top))
    scale = jnp.where(jnp.isneginf(parts.top), 0, jnp.exp(behind))
    return Stats(
        top,
        jnp.sum(scale * parts.total, axis=0),
        jnp.sum(scale * (parts.moment + parts.total * behind), axis=0),
        jnp.sum(parts.target, axis=0),
    )


def finish(seen: Stats, target: jax.Array, vocab: int) -> Softmax:
    """Log-prob and entropy by token, exactly 0 where there is none to compute, NaN for a token out of range."""
    some = ~jnp.isneginf(seen.top)
    total = jnp.where(some, seen.total, 1)
    log_total = jnp.log(total)
    logp = (seen.target - _finite(seen.top)) - log_total
    # Where no entry is left, none is the token's: its logit was the -inf of a masked one, or the 0 of none.
    logp = jnp.where(some, logp, -jnp.inf)
    logp = jnp.where(target == vocab, jnp.nan, logp)
    live = target >= 0
    return Softmax(
        seen.top,
        log_total,
        jnp.where(live, logp, 0),
        jnp.where(live, log_total - seen.moment / total, 0),
    )


class Pull(NamedTuple):
    """How the loss pulls at a token's logits: ``dz = hit * onehot + exp(z - lse) * (flat - tilt * (z - lse))``.

    With cotangents ``a`` of the log-prob, ``e`` of the entropy H and ``l`` of the lse: the softmax's derivatives are
    ``onehot - p``, ``-p (z - lse + H)`` and ``p``.
    """

    top: jax.Array
    log_total: jax.Array
    hit: jax.Array
    flat: jax.Array
    tilt: jax.Array


def pull(
    soft: Softmax, target: jax.Array, vocab: int, d_logp: jax.Array, d_entropy: jax.Array, d_lse: jax.Array
) -> Pull:
    """The pull by token, from cotangents of one shape; exactly 0 where there is nothing to compute.

    A log-prob of -inf has no slope and gets no gradient; that of a token out of range is NaN.
    """
    live = target >= 0
    d_logp = jnp.where(live & ~jnp.isneginf(soft.logp), d_logp, 0)
    d_logp = jnp.where(target == vocab, jnp.nan, d_logp)
    d_entropy, d_lse = jnp.where(live, d_entropy, 0), jnp.where(live, d_lse, 0)
    return Pull(_finite(soft.top), soft.log_total, d_logp, d_lse - d_logp - d_entropy * soft.entropy, d_entropy)


def logit_gradient(z: jax.Array, slope: jax.Array | float, slab: Slab, target: jax.Array, by: Pull) -> jax.Array:
    """Gradient [..., lanes] of the loss by the matmul's result, in the dtype of ``z``: rounded by nobody yet."""
    dead = jnp.isneginf(z)
    log_p = jnp.where(dead, 0, (z - by.top[..., None]) - by.log_total[..., None])
    p = jnp.where(dead, 0, jnp.exp(log_p))
    own = slab.ids == target[..., None]
    dz = jnp.where(own, by.hit[..., None], 0) + p * (by.flat[..., None] - by.tilt[..., None] * log_p)
    return dz * slope


def _finite(top: jax.Array) -> jax.Array:
    """A largest logit to subtract: 0 where it is -inf, since -inf less -inf is no number."""
    return jnp.where(jnp.isneginf(top), 0, top)
