"""The log-prob head as it is called."""

from __future__ import annotations

from typing import Any, Literal

import jax
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from steptrace_kernels.logps.baselines import chunked
from steptrace_kernels.logps.engine import engine
from steptrace_kernels.logps.head import Head, Layout, Logps, Strategy
from steptrace_kernels.logps.mesh import reshard
from steptrace_kernels.logps.prepare import prepare
from steptrace_kernels.logps.setting import Setting


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
    compute_dtype: Any = None,
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
      compute_dtype: dtype of the operands of matmuls; None for the wider of hidden states and table. Gradients have the
        dtype of what they belong to, whatever this is.
      hidden_sums: dtype in which gradients of hidden states are summed over devices; None for that of all sums. A
        shorter one moves fewer bytes and rounds more.

    Returns:
      Arrays [rows, length], float32 or float64.

    Raises:
      LogpsError: arguments do not fit together; before anything is compiled.
      CannotRunError: the kernel cannot run, and ``mode`` is "error".
    """
    call = prepare(
        hidden,
        tokens,
        head,
        mesh=mesh,
        layout=layout,
        chunk_tokens=chunk_tokens,
        temperature=temperature,
        soft_cap=soft_cap,
        logit_scale=logit_scale,
        needed=needed,
        segment_ids=segment_ids,
        strategy=strategy,
        mode=mode,
        compute_dtype=compute_dtype,
        hidden_sums=hidden_sums,
    )
    if call.setting is None:
        out = chunked(call.hidden, call.head, call.inputs, call.formula, call.chunk)
    else:
        out = cropped(call.setting, engine(call.setting, call.hidden, call.head, call.inputs), call.shape)
    return Logps(out.logp, out.entropy if return_entropy else None, out.lse if return_lse else None)


def cropped(setting: Setting, out: Logps, shape: tuple[int, int]) -> Logps:
    """Results without the padding; no explicit axis can shard what then does not divide."""
    if setting.shape == shape:
        return out
    return Logps(*(reshard(x, setting.mesh, PartitionSpec())[: shape[0], : shape[1]] for x in out))
