"""The two passes over the mesh, and the rule that makes the second the derivative of the first.

Each pass is a ``shard_map`` over all axes, and the ``custom_vjp`` is around both: no derivative is taken through a
collective, so the dtype of every accumulation, and of every sum over devices, is the one written down.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax.sharding import PartitionSpec

from steptrace_kernels.logps.backward import backward
from steptrace_kernels.logps.forward import Inputs, Saved, forward
from steptrace_kernels.logps.head import Head, Logps
from steptrace_kernels.logps.mesh import reshard
from steptrace_kernels.logps.setting import Setting
from steptrace_kernels.logps.tile import Softmax
from steptrace_kernels.logps.tokens import Aligned

Pass = Callable[..., Any]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def engine(setting: Setting, hidden: jax.Array, head: Head, inputs: Inputs) -> Logps:
    """Log-probs, entropies and lse [rows, length] of whole arrays, which divide over the mesh as ``setting`` says."""
    return _forward(setting, hidden, head, inputs)[0]


def _engine_forward(setting: Setting, hidden: jax.Array, head: Head, inputs: Inputs) -> tuple[Logps, Any]:
    out, saved = _forward(setting, hidden, head, inputs)
    return out, (hidden, head, saved)


def _engine_backward(setting: Setting, kept: Any, by: Logps) -> tuple[jax.Array, Head, None]:
    hidden, head, saved = kept
    # Cotangents of results that nobody uses are zeros that lie nowhere in particular, which explicit axes refuse.
    by = jax.tree.map(lambda x: reshard(x, setting.mesh, setting.by_token), by)
    return *_backward(setting, hidden, head, saved, by), None


engine.defvjp(_engine_forward, _engine_backward)


def _differentiable(run: Pass) -> Pass:
    """``run`` with a derivative of its own, for second order: by differentiating the pass itself.

    A loop whose length depends on how many tokens are needed has no derivative; that over all tokens has, and gives
    the same.
    """

    @partial(jax.custom_vjp, nondiff_argnums=(0,))
    def outer(setting: Setting, *arguments: Any) -> Any:
        return run(setting, *arguments)

    def back(setting: Setting, arguments: tuple[Any, ...], by: Any) -> tuple[Any, ...]:
        return jax.vjp(partial(run, dataclasses.replace(setting, skips=False)), *arguments)[1](by)

    outer.defvjp(lambda setting, *arguments: (run(setting, *arguments), arguments), back)
    return outer


@_differentiable
@partial(jax.jit, static_argnums=0)
def _forward(setting: Setting, hidden: jax.Array, head: Head, inputs: Inputs) -> tuple[Logps, Saved]:
    return over_mesh(
        partial(forward, setting),
        setting,
        (by_row(setting), setting.head_specs(head), input_specs(setting, inputs)),
        (Logps(*[setting.by_token] * 3), _saved_specs(setting, head, inputs)),
    )(hidden, head, inputs)


@_differentiable
@partial(jax.jit, static_argnums=0)
def _backward(setting: Setting, hidden: jax.Array, head: Head, saved: Saved, by: Logps) -> tuple[jax.Array, Head]:
    head_specs = setting.head_specs(head)
    inputs = Inputs(saved.aligned.target, None, None, saved.aligned.temperature)
    return over_mesh(
        partial(backward, setting),
        setting,
        (by_row(setting), head_specs, _saved_specs(setting, head, inputs), Logps(*[setting.by_token] * 3)),
        (by_row(setting), head_specs),
    )(hidden, head, saved, by)


def over_mesh(function: Any, setting: Setting, in_specs: Any, out_specs: Any) -> Any:
    """``function`` on shards as a function on whole arrays.

    Not checked for varying axes: what comes out equal on all devices does so by exchange of the same numbers, which
    the type system of collectives cannot see.
    """
    return jax.shard_map(function, mesh=setting.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def by_row(setting: Setting) -> PartitionSpec:
    """Spec of hidden states [rows, length, features]."""
    return PartitionSpec(*setting.by_token, None)


def input_specs(setting: Setting, inputs: Inputs) -> Inputs:
    """Specs of arrays by token; a scalar is everywhere."""
    return jax.tree.map(lambda x: setting.by_token if x.ndim else PartitionSpec(), inputs)


def _saved_specs(setting: Setting, head: Head, inputs: Inputs) -> Saved:
    bias = None if head.bias is None else setting.by_slab
    temperature = input_specs(setting, inputs).temperature
    return Saved(
        Aligned(setting.by_token, temperature),
        Softmax(*[setting.by_token] * 4),
        (setting.by_slab, bias) if setting.keeps_slab else None,
        setting.by_group if setting.keeps_hidden else None,
    )
