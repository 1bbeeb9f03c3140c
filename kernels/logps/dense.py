"""The reference: log-probs and entropies from whole logits, in plain JAX with float32 accumulation."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from steptrace_kernels.logps.head import Logps


def dense_logps(
    logits: jax.Array,
    tokens: jax.Array,
    segment_ids: jax.Array,
    *,
    temperature: float | jax.Array = 1.0,
) -> Logps:
    """Log-prob, entropy and lse of each token under ``softmax(logits / temperature)`` of the position before it.

    The first token of a segment has nothing before it, and padding (segment id 0) is no token: there all
    results are exactly 0, and so are their gradients, whatever the logits and token ids at these places
    hold. A token id out of ``0..vocab-1`` anywhere else gives NaN, in value and gradient, so that it
    cannot pass for a number. Vocabulary entries masked with -inf add 0 to the entropy; a token that is
    itself masked has log-prob -inf; where all entries are masked the log-prob is -inf, the entropy 0 and
    the gradient 0.

    Args:
      logits: [rows, length, vocab], any floating dtype; ``logits[r, i]`` predicts ``tokens[r, i + 1]``.
      tokens: integer [rows, length].
      segment_ids: integer [rows, length]; sequences of a row are contiguous and carry different ids, 0 is padding.
      temperature: a positive scalar, or [rows], or [rows, length] by the token it applies to. The division
        happens after the logits were brought to float32.

    Returns:
      Three float32 arrays [rows, length] (float64 for float64 logits).

    Raises:
      ValueError: shapes or dtypes do not fit together, or a Python ``temperature`` is not above 0; before
        anything is compiled.
    """
    logits, tokens, segment_ids = jnp.asarray(logits), jnp.asarray(tokens), jnp.asarray(segment_ids)
    _check(logits, tokens, segment_ids, temperature)
    dtype = jnp.promote_types(logits.dtype, jnp.float32)
    vocab = logits.shape[-1]
    predicted = has_predecessor(segment_ids)
    needed = predicted[:, 1:]
    scale = _by_token(jnp.asarray(temperature, dtype), tokens.shape)[:, 1:]
    scaled = jnp.where(needed[..., None], logits[:, :-1].astype(dtype), 0) / jnp.where(needed, scale, 1)[..., None]
    target = jnp.where(needed, tokens[:, 1:], 0)
    logp, entropy, lse = _head(scaled, jnp.clip(target, 0, vocab - 1))
    # A factor, not a `where`: it must poison the gradient too, and only there.
    inside = (target >= 0) & (target < vocab)
    logp = logp * jnp.where(inside, 1, jnp.nan).astype(dtype)
    front = ((0, 0), (1, 0))
    zero = jnp.zeros((), dtype)
    return Logps(
        jnp.pad(jnp.where(needed, logp, zero), front),
        jnp.pad(jnp.where(needed, entropy, zero), front),
        jnp.pad(jnp.where(needed, lse, zero), front),
    )


def has_predecessor(segment_ids: jax.Array) -> jax.Array:
    """Bool [rows, length]: True where a token follows another of its own segment, so that it has a log-prob."""
    same = (segment_ids[:, 1:] == segment_ids[:, :-1]) & (segment_ids[:, 1:] != 0)
    return jnp.pad(same, ((0, 0), (1, 0)))


def _head(logits: jax.Array, target: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Log-prob of ``target``, entropy and lse, all from shifted logits, so that large logits cost no digits."""
    top = lax.stop_gradient(jnp.max(logits, axis=-1))
    some = top > -jnp.inf
    shifted = logits - jnp.where(some, top, 0)[..., None]
    live = ~jnp.isneginf(logits)
    # Masked entries leave the sums before they meet `exp` or a product: 0 * inf would reach the gradient.
    finite = jnp.where(live, shifted, 0)
    weight = jnp.where(live, jnp.exp(finite), 0)
    total = jnp.where(some, jnp.sum(weight, axis=-1), 1)
    log_total = jnp.log(total)
    picked = jnp.take_along_axis(finite, target[..., None], axis=-1)[..., 0]
    allowed = jnp.take_along_axis(live, target[..., None], axis=-1)[..., 0]
    logp = jnp.where(allowed, picked - log_total, -jnp.inf)
    entropy = log_total - jnp.sum(weight * finite, axis=-1) / total
    return logp, entropy, top + log_total


def _by_token(temperature: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """The temperature as [rows, length]."""
    return jnp.broadcast_to(temperature[:, None] if temperature.ndim == 1 else temperature, shape)


def _check(logits: jax.Array, tokens: jax.Array, segment_ids: jax.Array, temperature: float | jax.Array) -> None:
    """Refuse what does not fit together; shapes and dtypes only, so it works on traced arrays."""
    if logits.ndim != 3 or logits.shape[-1] < 1:
        raise ValueError(f"logits must be [rows, length, vocab] with a vocab of at least 1, not {logits.shape}")
    if not jnp.issubdtype(logits.dtype, jnp.floating):
        raise ValueError(f"logits must be floating, not {logits.dtype}")
    for name, array in (("tokens", tokens), ("segment_ids", segment_ids)):
        if array.shape != logits.shape[:2]:
            raise ValueError(f"{name} must be [rows, length] = {logits.shape[:2]} as the logits are, not {array.shape}")
        if not jnp.issubdtype(array.dtype, jnp.integer):
            raise ValueError(f"{name} must be integers, not {array.dtype}")
    allowed = ((), tokens.shape[:1], tokens.shape)
    if jnp.shape(temperature) not in allowed:
        shape = jnp.shape(temperature)
        raise ValueError(f"temperature must be a scalar, [rows] or [rows, length] = {tokens.shape}, not {shape}")
    if isinstance(temperature, int | float) and not 0 < temperature < float("inf"):
        raise ValueError(f"temperature must be above 0 and finite, not {temperature}")
