"""From the arguments of a call to what is static about it, and to arrays that divide over the mesh."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh

from steptrace_kernels.logps import mesh as meshes
from steptrace_kernels.logps import validate
from steptrace_kernels.logps.choose import choose
from steptrace_kernels.logps.cost import Parts
from steptrace_kernels.logps.engine import by_row, input_specs
from steptrace_kernels.logps.fallback import Fallback, Reason, fall_back
from steptrace_kernels.logps.forward import Inputs
from steptrace_kernels.logps.head import Axes, Head, Layout, Strategy
from steptrace_kernels.logps.setting import Setting
from steptrace_kernels.logps.tile import Formula

DEFAULT_CHUNK = 1024
"""Tokens of its own that a device takes at a time, where nobody says."""


class Call(NamedTuple):
    """A call whose arguments fit together.

    Attributes:
      hidden: as it was given, or padded where there is a setting; as are those that follow.
      head: its parameters.
      inputs: arrays by token.
      formula: the static part of the formula.
      setting: what the engine runs; None where the chunked head does, on arrays as they were given.
      shape: rows and length as they were given.
      chunk: tokens at a time for the chunked head.
    """

    hidden: jax.Array
    head: Head
    inputs: Inputs
    formula: Formula
    setting: Setting | None
    shape: tuple[int, int]
    chunk: int


def prepare(
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
    strategy: Literal["auto"] | Strategy = "auto",
    mode: Literal["error", "fallback"] = "error",
    compute_dtype: Any = None,
    hidden_sums: Any = None,
    one_pass: bool = False,
) -> Call:
    """The call of these arguments; they are those of :func:`steptrace_kernels.logps.logps`, which explains them.

    ``one_pass`` says for which of the two ways to take a gradient a strategy is to be chosen.

    Raises:
      LogpsError: they do not fit together.
      CannotRunError: the kernel cannot run, and ``mode`` is "error".
    """
    hidden, tokens, head = on_device(hidden), on_device(tokens), jax.tree.map(on_device, head)
    segment_ids, needed = (None if x is None else jnp.asarray(x) for x in (segment_ids, needed))
    validate.check_arrays(hidden, tokens, head)
    validate.check_by_token(tokens.shape, segment_ids, needed, temperature)
    validate.check_positive("soft_cap", soft_cap)
    validate.check_positive("logit_scale", logit_scale)
    validate.check_choices(strategy, mode, chunk_tokens, one_pass=one_pass)
    validate.check_layout(layout)
    formula = formula_of(hidden, head, soft_cap, logit_scale, compute_dtype)
    inputs = inputs_of(tokens, segment_ids, needed, temperature, formula)
    call = Call(hidden, head, inputs, formula, None, tokens.shape, chunk_tokens or DEFAULT_CHUNK)
    where = place(hidden, head, mesh, layout)
    if isinstance(where, Fallback):
        fall_back(where, mode)
        return call
    if 0 in tokens.shape:
        return call
    given = idle_split(where[1], where[0].axis_names) if strategy == "auto" else strategy
    setting = setting_of(call, *where, given, chunk_tokens, hidden_sums)
    if strategy == "auto":
        chosen = choose(setting, parts_of(call, one_pass=one_pass)).strategy
        setting = dataclasses.replace(setting, strategy=chosen)
    hidden, head, inputs = padded(setting, hidden, head, inputs)
    return call._replace(hidden=hidden, head=head, inputs=inputs, setting=setting)


def on_device(x: Any) -> jax.Array:
    """``x`` in the memory of the device; from host memory it is brought, and its gradient goes back there."""
    x = jnp.asarray(x)
    return x if jax.typeof(x).memory_space == jax.memory.Space.Device else jax.device_put(x, jax.memory.Space.Device)


def place(
    hidden: jax.Array, head: Head, mesh: Mesh | AbstractMesh | None, layout: Layout | None
) -> tuple[Mesh | AbstractMesh, Layout] | Fallback:
    """Mesh and layout of a call, or why the kernel cannot run."""
    mesh = meshes.current_mesh() if mesh is None else mesh
    if mesh is None:
        return Fallback(Reason.NO_MESH)
    if not isinstance(mesh, Mesh | AbstractMesh):
        raise validate.LogpsError(f"mesh must be a Mesh or an AbstractMesh, not {type(mesh).__name__}")
    manual = meshes.manual_axes(jax.sharding.get_abstract_mesh())
    if manual:
        return Fallback(Reason.INSIDE_SHARD_MAP, ", ".join(manual))
    layout = meshes.layout_from_types(hidden, head) if layout is None else layout
    return Fallback(Reason.NO_LAYOUT) if layout is None else (mesh, layout)


def formula_of(
    hidden: jax.Array, head: Head, soft_cap: float | None, logit_scale: float | None, compute_dtype: Any
) -> Formula:
    """The static part of the formula: operands in the wider dtype of hidden states and table, sums at least float32."""
    compute = jnp.promote_types(hidden.dtype, head.weight.dtype) if compute_dtype is None else compute_dtype
    validate.check_float("compute_dtype", compute)
    compute = jnp.dtype(compute)
    sums = jnp.promote_types(compute, jnp.float32)
    return Formula(soft_cap, None if logit_scale == 1 else logit_scale, compute, sums)


def inputs_of(
    tokens: jax.Array,
    segment_ids: jax.Array | None,
    needed: jax.Array | None,
    temperature: float | jax.Array,
    formula: Formula,
) -> Inputs:
    """Arrays by token; a temperature of 1 that is known to be 1 is none."""
    if isinstance(temperature, int | float) and temperature == 1:
        warm = None
    else:
        warm = jax.lax.stop_gradient(jnp.asarray(temperature, formula.sums))
        warm = jnp.broadcast_to(warm[:, None], tokens.shape) if warm.ndim == 1 else warm
    return Inputs(tokens, segment_ids, needed, warm)


def setting_of(
    call: Call,
    mesh: Mesh | AbstractMesh,
    layout: Layout,
    strategy: Strategy,
    chunk_tokens: int | None,
    hidden_sums: Any,
) -> Setting:
    """All that is static about a call.

    Raises:
      LogpsError: the layout or the strategy names axes that it cannot.
    """
    head, inputs, formula = call.head, call.inputs, call.formula
    axis_sizes = meshes.sizes(mesh)
    validate.check_axes(layout, strategy, tuple(axis_sizes))
    if hidden_sums is not None:
        validate.check_float("hidden_sums", hidden_sums)
    split = tuple(axis for axis in strategy.vocab_axes if axis_sizes[axis] > 1)
    skips = inputs.needed is not None
    rows, length = (
        up(size, meshes.count(axis_sizes, axes))
        for size, axes in zip(call.shape, (layout.batch, layout.sequence), strict=True)
    )
    held = rows * length // meshes.count(axis_sizes, layout.tokens)
    vocab, features = head.weight.shape if head.orientation == "vd" else head.weight.shape[::-1]
    return Setting(
        mesh=mesh,
        layout=layout,
        strategy=dataclasses.replace(strategy, vocab_axes=split, keep_hidden=strategy.keep_hidden and not skips),
        formula=formula,
        vocab=vocab,
        features=features,
        rows=up(vocab, meshes.count(axis_sizes, layout.table_vocab)),
        orientation=head.orientation,
        shape=(rows, length),
        chunk=min(strategy.chunk_tokens or chunk_tokens or DEFAULT_CHUNK, held),
        skips=skips,
        hidden_sums=jnp.dtype(formula.sums if hidden_sums is None else hidden_sums),
        weight_dtype=head.weight.dtype,
    )


def parts_of(call: Call, *, one_pass: bool, gradient: bool = True, needed: float = 1.0) -> Parts:
    """What a prediction of the call's cost has to know beside its setting."""
    head = call.head
    bias = 0 if head.bias is None else head.bias.dtype.itemsize
    return Parts(call.hidden.dtype.itemsize, bias, head.norm is not None, one_pass, gradient, needed)


def idle_split(layout: Layout, axes: Axes) -> Strategy:
    """The vocabulary split over the axes that shard no tokens: their devices have the same, and need no gather."""
    return Strategy(vocab_axes=tuple(axis for axis in axes if axis not in layout.tokens))


def padded(setting: Setting, hidden: jax.Array, head: Head, inputs: Inputs) -> tuple[jax.Array, Head, Inputs]:
    """Arrays as the engine wants them: padded where sizes do not divide, and sharded where their types say how.

    What is added to tokens is not needed, what is added to the table is masked; gradients lose it again.
    """
    rows, length = (whole - size for whole, size in zip(setting.shape, inputs.tokens.shape, strict=True))
    if rows or length:
        needed = jnp.ones(inputs.tokens.shape, bool) if inputs.needed is None else inputs.needed
        inputs = jax.tree.map(lambda x: pad(x, rows, length), inputs._replace(needed=needed))
        hidden = pad(hidden, rows, length)
    vocab = setting.rows - setting.vocab
    embed = -setting.features % meshes.count(meshes.sizes(setting.mesh), setting.layout.table_embed)
    if vocab or embed:
        more = (vocab, embed) if head.orientation == "vd" else (embed, vocab)
        bias = None if head.bias is None else pad(head.bias, vocab)
        head = dataclasses.replace(head, weight=pad(head.weight, *more), bias=bias)
    specs = (by_row(setting), setting.head_specs(head), input_specs(setting, inputs))
    return jax.tree.map(lambda x, spec: meshes.reshard(x, setting.mesh, spec), (hidden, head, inputs), specs)


def up(size: int, step: int) -> int:
    """The next multiple of ``step``."""
    return -(-size // step) * step


def pad(x: jax.Array, *more: int) -> jax.Array:
    """``x`` with ``more`` zeros at the end of its first dimensions; a scalar stays."""
    if not x.ndim:
        return x
    return jnp.pad(x, [(0, extra) for extra in more] + [(0, 0)] * (x.ndim - len(more)))
