"""The log-prob head as it is called."""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh

from steptrace_kernels.logps import validate
from steptrace_kernels.logps.baselines import chunked
from steptrace_kernels.logps.engine import engine
from steptrace_kernels.logps.fallback import Fallback, fall_back
from steptrace_kernels.logps.head import Head, Layout, Logps, Strategy
from steptrace_kernels.logps.prepare import DEFAULT_CHUNK, formula_of, inputs_of, padded, place, setting_of


def logps(
    hidden: jax.Array,
    tokens: jax.Array,
    head: Head,
    *,
    mesh: Mesh | AbstractMesh | None = None,
    layout: Layout | None = None,
    chunk_tokens: int | None = None,
    temperature: float | jax.Array = 1.0,
    soft_cap: float | None = None,
    logit_scale: float | None = None,
    needed: jax.Array | None = None,
    segment_ids: jax.Array | None = None,
    return_entropy: bool = True,
    return_lse: bool = False,
    strategy: Literal["auto"] | Strategy = "auto",
    mode: Literal["error", "fallback"] = "error",
    hidden_sums: Any = None,
) -> Logps:
    """Log-prob, entropy and lse of each token under a sharded vocabulary head, in bounded memory.

    ``logp[r, i]`` belongs to ``tokens[r, i]`` and is made from ``hidden[r, i - 1]``. It is exactly 0, as are entropy,
    lse and all gradients from there, at the first position, at the first of a segment, on padding (segment 0), and
    where it is not needed, whatever stands there. Elsewhere a token id out of range gives NaN in value and gradient; a
    token whose bias is -inf has log-prob -inf and no gradient.

    Exact: nothing is approximated, and all sums are in float32 (float64 for float64 arguments), over devices too.
    Differentiable in ``hidden`` and all of ``head``, twice where ``needed`` is None; not in forward mode. The
    temperature is a constant to it.

    Args:
      hidden: [rows, length, features], states of which each predicts the next token; before ``head.norm`` if there is
        one.
      tokens: integer [rows, length].
      head: table, bias and norm.
      mesh: the mesh; that of the context if None.
      layout: what is sharded over which axes; None to read it from the types of arrays with explicit axes. Sizes that
        do not divide over them are padded inside. Sequences lie in order: a load-balanced order of positions, in which
        the next token's shard is not the next shard, is not supported.
      chunk_tokens: tokens of its own that a device takes at a time, if the strategy leaves it open.
      temperature: a positive scalar, [rows], or [rows, length] by the token it applies to; logits are divided by it in
        float32, after the soft cap. A traced one that is not above 0 gives NaN.
      soft_cap: logits become ``soft_cap * tanh(logits / soft_cap)``.
      logit_scale: a factor on logits, before the soft cap.
      needed: bool [rows, length], which log-probs are wanted; work on the others is left out.
      segment_ids: integer [rows, length]; sequences of a packed row carry different ids, 0 is padding.
      return_entropy: whether entropies are returned.
      return_lse: whether the logsumexp is returned.
      strategy: how the work is split over devices, or "auto" for the fewest bytes that fit.
      mode: what happens where the kernel cannot run: "error", or "fallback" to the chunked head with a line in the log.
      hidden_sums: dtype in which gradients of hidden states are summed over devices; None for that of all sums. A
        shorter one moves fewer bytes and rounds more.

    Returns:
      Arrays [rows, length], float32 or float64.

    Raises:
      LogpsError: arguments do not fit together; before anything is compiled.
      CannotRunError: the kernel cannot run, and ``mode`` is "error".
    """
    hidden, tokens, head = jnp.asarray(hidden), jnp.asarray(tokens), jax.tree.map(jnp.asarray, head)
    validate.check_arrays(hidden, tokens, head)
    validate.check_by_token(tokens.shape, segment_ids, needed, temperature)
    validate.check_positive("soft_cap", soft_cap)
    validate.check_positive("logit_scale", logit_scale)
    formula = formula_of(hidden, head, soft_cap, logit_scale)
    inputs = inputs_of(tokens, segment_ids, needed, temperature, formula)
    where = place(hidden, head, mesh, layout)
    if isinstance(where, Fallback):
        fall_back(where, mode)
        out = chunked(hidden, head, inputs, formula, chunk_tokens or DEFAULT_CHUNK)
    elif 0 in tokens.shape:
        out = Logps(*[jnp.zeros(tokens.shape, formula.sums)] * 3)
    else:
        setting = setting_of(hidden, head, inputs, formula, *where, strategy, chunk_tokens, hidden_sums)
        out = engine(setting, *padded(setting, hidden, head, inputs))
        out = Logps(*(x[: tokens.shape[0], : tokens.shape[1]] for x in out))
    return Logps(out.logp, out.entropy if return_entropy else None, out.lse if return_lse else None)
