"""A loss in one pass: gradients come out of the forward sweep, three matmuls instead of four.

Where the loss of a token depends on the log-prob and entropy of that token alone, what pulls at its logits is known as
soon as they are, and they need not be made again (the fused cross entropies of Liger do so for their one loss). A
sequence-level ratio, as of GSPO, is no such loss: it is refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from steptrace_kernels.logps import tile
from steptrace_kernels.logps.api import cropped
from steptrace_kernels.logps.backward import (
    HiddenGradient,
    SlabGradient,
    absorb,
    finish,
    no_hidden_gradient,
    no_slab_gradient,
)
from steptrace_kernels.logps.baselines import chunked
from steptrace_kernels.logps.blocks import loader, returned
from steptrace_kernels.logps.elementwise import mixing_primitive, placing_primitive
from steptrace_kernels.logps.engine import by_row, input_specs, over_mesh
from steptrace_kernels.logps.forward import Inputs, align, forward, has_logp, results
from steptrace_kernels.logps.head import Head, Logps
from steptrace_kernels.logps.mesh import reshard
from steptrace_kernels.logps.prepare import pad, prepare
from steptrace_kernels.logps.setting import Setting
from steptrace_kernels.logps.shifts import shift_left, shift_right
from steptrace_kernels.logps.tokens import (
    Start,
    by_place,
    by_token,
    chunk_of,
    gathered_once,
    hold,
    merge_from_group,
    reader,
    sweep,
    to_group,
)
from steptrace_kernels.logps.validate import LogpsError

TokenLoss = Callable[..., jax.Array]
Aux = tuple[jax.Array, ...]


def fused_token_loss(loss: TokenLoss) -> Callable[..., tuple[jax.Array, Logps]]:
    """A function that gives the sum of ``loss(logp, entropy, *aux)`` over tokens, and the log-probs.

    ``loss`` works element by element: on arrays of any one shape, without a sum, mean or shift in it. It must close
    over no traced arrays; what it needs beside log-prob and entropy is passed as ``aux``. Weights of tokens, such as
    1 / count, belong into it.

    The result is called as ``fused(hidden, tokens, head, *aux, **settings)``, with the settings of
    :func:`steptrace_kernels.logps.logps`. Each of ``aux`` is a scalar or [rows, length] by token. The sum is over
    tokens that have a log-prob; others, and what stands in ``aux`` there, do not matter. It is differentiable in
    ``hidden``, ``head`` and floating ``aux``, once; the returned log-probs are constants. Where no gradient is taken
    the plain forward pass runs, with the same log-probs bit for bit.

    Raises:
      LogpsError: when called: ``loss`` is not elementwise, ``aux`` do not fit, or the vocabulary is to be taken in
        blocks, so that it is never seen whole; and all that ``logps`` raises.
    """

    def fused(hidden: jax.Array, tokens: jax.Array, head: Head, *aux: Any, **settings: Any) -> tuple[jax.Array, Logps]:
        call = prepare(hidden, tokens, head, one_pass=True, **settings)
        by_token_aux = _aux_of(aux, call.shape)
        _refuse_mixing(loss, call.formula.sums, by_token_aux)
        if call.setting is None:
            out = chunked(call.hidden, call.head, call.inputs, call.formula, call.chunk)
            total = _total_by_token(loss, out, has_logp(call.inputs), by_token_aux)
        else:
            spare = [whole - size for whole, size in zip(call.setting.shape, call.shape, strict=True)]
            by_token_aux = tuple(
                reshard(pad(x, *spare), call.setting.mesh, call.setting.by_token) for x in by_token_aux
            )
            total, out = _fused(call.setting, loss, call.hidden, call.head, call.inputs, by_token_aux)
            out = cropped(call.setting, out, call.shape)
        return total, Logps(*lax.stop_gradient((out.logp, out.entropy, out.lse)))

    return fused


def _aux_of(aux: tuple[Any, ...], shape: tuple[int, int]) -> Aux:
    """Each as [rows, length], so that a scalar's gradient is the sum over it."""
    for at, x in enumerate(aux):
        if jnp.shape(x) not in ((), shape):
            raise LogpsError(f"aux {at} must be a scalar or {list(shape)}, not {list(jnp.shape(x))}")
    return tuple(jnp.broadcast_to(jnp.asarray(x), shape) for x in aux)


def _refuse_mixing(loss: TokenLoss, sums: jnp.dtype, aux: Aux) -> None:
    """Refuse a loss in which tokens meet, or in which their places or number have a part."""
    dtypes = [sums, sums, *(x.dtype for x in aux)]
    try:
        mixing = mixing_primitive(loss, dtypes)
        placing = None if mixing else placing_primitive(loss, dtypes)
    except (TypeError, ValueError, IndexError) as error:
        raise LogpsError(f"the loss of a token is needed, and no other: {error}") from error
    if mixing:
        raise LogpsError(
            f"the loss is not elementwise: it has {mixing}, by which a token's loss depends on other tokens, as in "
            "ratios of sequences. Use logps, and differentiate the loss."
        )
    if placing:
        raise LogpsError(
            f"the loss is not elementwise: it has {placing}, by which a token's loss depends on its place, or on how "
            "many tokens are taken at a time. Weights of tokens, and 1 / count, are passed as aux."
        )


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _fused(setting: Setting, loss: TokenLoss, hidden: jax.Array, head: Head, inputs: Inputs, aux: Aux) -> Any:
    """Sum of the loss, and results, of whole arrays."""
    return _plain(setting, loss, hidden, head, inputs, aux)


def _fused_forward(
    setting: Setting, loss: TokenLoss, hidden: jax.Array, head: Head, inputs: Inputs, aux: Aux
) -> tuple[Any, Any]:
    # In the dtype of sums, so that they are rounded to that of the parameters once, after the cotangent came in.
    exact = dataclasses.replace(setting, weight_dtype=setting.formula.sums)
    total, out, gradients = _with_gradients(exact, loss, hidden, head, inputs, aux)
    dtypes = jax.tree.map(lambda x: jnp.zeros((), x.dtype), (hidden, head, _floating(aux)))
    return (total, out), (gradients, dtypes)


def _fused_backward(setting: Setting, loss: TokenLoss, kept: Any, by: tuple[jax.Array, Logps]) -> Any:
    gradients, dtypes = kept
    hidden, head, aux = jax.tree.map(lambda g, x: (g * by[0]).astype(x.dtype), gradients, dtypes)
    return hidden, head, None, aux


_fused.defvjp(_fused_forward, _fused_backward)


@partial(jax.jit, static_argnums=(0, 1))
def _plain(setting: Setting, loss: TokenLoss, hidden: jax.Array, head: Head, inputs: Inputs, aux: Aux) -> Any:
    def local(hidden: jax.Array, head: Head, inputs: Inputs, aux: Aux) -> tuple[jax.Array, Logps]:
        out, saved = forward(setting, hidden, head, inputs)
        return _total(setting, loss, saved.soft, saved.aligned.target, _by_source(setting, aux)), out

    in_specs, (total, out, _) = _specs(setting, head, inputs, aux)
    return over_mesh(local, setting, in_specs, (total, out))(hidden, head, inputs, aux)


@partial(jax.jit, static_argnums=(0, 1))
def _with_gradients(setting: Setting, loss: TokenLoss, hidden: jax.Array, head: Head, inputs: Inputs, aux: Aux) -> Any:
    in_specs, out_specs = _specs(setting, head, inputs, aux)
    return over_mesh(partial(one_pass, setting, loss), setting, in_specs, out_specs)(hidden, head, inputs, aux)


def _specs(setting: Setting, head: Head, inputs: Inputs, aux: Aux) -> tuple[Any, Any]:
    """Specs of the arguments, and of total, results and gradients."""
    hidden, heads = by_row(setting), setting.head_specs(head)
    in_specs = (hidden, heads, input_specs(setting, inputs), input_specs(setting, aux))
    gradients = (hidden, heads, input_specs(setting, _floating(aux)))
    return in_specs, (PartitionSpec(), Logps(*[setting.by_token] * 3), gradients)


class Sweep(NamedTuple):
    """What one pass makes, chunk by chunk.

    Attributes:
      tokens: gradients of hidden states and norm.
      slab: gradients of the slab.
      soft: the softmax by place.
      aux: gradients of those of ``aux`` that are floating, by place; None for the others.
    """

    tokens: HiddenGradient
    slab: SlabGradient
    soft: tile.Softmax
    aux: Aux


def one_pass(
    setting: Setting, loss: TokenLoss, hidden: jax.Array, head: Head, inputs: Inputs, aux: Aux
) -> tuple[jax.Array, Logps, tuple[jax.Array, Head, Aux]]:
    """Sum of the loss, results by token, and the sum's gradients, as one device computes them from its shards."""
    aligned = align(setting, inputs)
    held = hold(setting, hidden, head.norm, aligned)
    read, slab = reader(setting, held, gathered_once(setting, held)), loader(setting, head)(0)
    by_source = _by_source(setting, aux)
    placed = tuple(by_place(held, x.reshape(-1), fill=0) for x in by_source)

    def step(done: Sweep, start: Start, size: int) -> Sweep:
        x = read(start, size)
        target, temperature = chunk_of(held.group, start, size)
        own = lax.dynamic_slice_in_dim(held.target, start, size)
        z, slope = tile.logits(x, slab, temperature, setting.formula)
        seen = jax.tree.map(lambda a: a.reshape(-1, size), tile.stats(z, slab, target))
        soft = tile.finish(merge_from_group(setting, seen), own, setting.vocab)
        here = tuple(lax.dynamic_slice_in_dim(a, start, size) for a in placed)
        pull, d_aux = _pull(setting, loss, soft, own, here)
        pull = tile.Pull(*to_group(setting, jnp.stack(pull, axis=-1)).T)
        g = tile.logit_gradient(z, slope, slab, target, pull)
        kept = jax.tree.map(
            lambda a, part: lax.dynamic_update_slice_in_dim(a, part, start, 0), (done.soft, done.aux), (soft, d_aux)
        )
        return Sweep(*absorb(setting, held, (done.tokens, done.slab), slab, x, g, start), *kept)

    zero = jnp.zeros(held.target.shape, setting.formula.sums)
    begin = Sweep(
        no_hidden_gradient(setting, held),
        no_slab_gradient(setting, slab),
        tile.Softmax(*[zero] * 4),
        jax.tree.map(jnp.zeros_like, _floating(placed)),
    )
    done = sweep(setting, held, step, begin)
    shape = aligned.target.shape
    soft = tile.Softmax(*(by_token(held, x).reshape(shape) for x in done.soft))
    table_side = jax.tree.map(lambda x: x[None], returned(setting, *done.slab))
    d_hidden, d_head = finish(setting, held, hidden, head, done.tokens, table_side)
    d_aux = jax.tree.map(lambda x: shift_right(by_token(held, x).reshape(shape), setting.layout.sequence), done.aux)
    total = _total(setting, loss, soft, aligned.target, by_source)
    return total, results(setting, soft, aligned.target), (d_hidden, d_head, d_aux)


def _pull(setting: Setting, loss: TokenLoss, soft: tile.Softmax, target: jax.Array, aux: Aux) -> tuple[tile.Pull, Aux]:
    """How the loss pulls at the logits of some tokens, and its gradients by those of ``aux`` that are floating."""
    floating = _floating(aux)

    def total(logp: jax.Array, entropy: jax.Array, floating: Aux) -> jax.Array:
        return jnp.sum(loss(logp, entropy, *(a if f is None else f for a, f in zip(aux, floating, strict=True))))

    d_logp, d_entropy, d_aux = jax.grad(total, argnums=(0, 1, 2))(soft.logp, soft.entropy, floating)
    pull = tile.pull(soft, target, setting.vocab, d_logp, d_entropy, jnp.zeros_like(d_logp))
    return pull, jax.tree.map(lambda d: jnp.where(target >= 0, d, 0), d_aux)


def _by_source(setting: Setting, aux: Aux) -> Aux:
    """``aux`` where the hidden states are that they go with."""
    return tuple(shift_left(x, setting.layout.sequence) for x in aux)


def _total(setting: Setting, loss: TokenLoss, soft: tile.Softmax, target: jax.Array, aux: Aux) -> jax.Array:
    """Sum of the loss over tokens that have a log-prob, over all devices that have others."""
    local = jnp.sum(jnp.where(target >= 0, loss(soft.logp, soft.entropy, *aux), 0))
    return lax.psum(local, setting.layout.tokens) if setting.layout.tokens else local


def _total_by_token(loss: TokenLoss, out: Logps, live: jax.Array, aux: Aux) -> jax.Array:
    """Sum of the loss over tokens that are ``live``, of whole arrays; from others no slope comes back, be it NaN."""

    def held(x: jax.Array) -> jax.Array:
        return jnp.where(live, x, lax.stop_gradient(x))

    return jnp.sum(jnp.where(live, loss(*map(held, (out.logp, out.entropy, *aux))), 0))


def _floating(aux: Aux) -> tuple[jax.Array | None, ...]:
    """Those that have a gradient, None in the place of others."""
    return tuple(x if jnp.issubdtype(x.dtype, jnp.floating) else None for x in aux)
