"""What a call must be like: shapes, dtypes and settings, refused before anything is compiled."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from steptrace_kernels.logps.head import Head, Layout, RMSNorm, Strategy

FLOATS = ("bfloat16", "float16", "float32", "float64")


class LogpsError(ValueError):
    """Arguments of the log-prob head that do not fit together, or that it does not implement."""


def check_arrays(hidden: jax.Array, tokens: jax.Array, head: Head) -> None:
    """Refuse hidden states, tokens and head that do not fit together.

    Raises:
      LogpsError: saying which.
    """
    check_head(hidden, head)
    if tokens.shape != hidden.shape[:2]:
        raise LogpsError(f"tokens must be [rows, length] = {hidden.shape[:2]} as hidden is, not {tokens.shape}")
    if not jnp.issubdtype(tokens.dtype, jnp.integer):
        raise LogpsError(f"tokens must be integers, not {tokens.dtype}")


def check_head(hidden: Any, head: Head) -> None:
    """Refuse hidden states and a head that do not fit together; both may be of shapes and dtypes alone.

    Raises:
      LogpsError: saying which.
    """
    if len(hidden.shape) != 3:
        raise LogpsError(f"hidden must be [rows, length, features], not {hidden.shape}")
    if not isinstance(head, Head):
        raise LogpsError(f"head must be a Head, not {type(head).__name__}")
    if not isinstance(head.norm, RMSNorm | None):
        raise LogpsError(f"the head's norm must be an RMSNorm or None, not {type(head.norm).__name__}")
    if head.orientation not in ("vd", "dv"):
        raise LogpsError(f"orientation must be 'vd' or 'dv', not {head.orientation!r}")
    if len(head.weight.shape) != 2:
        raise LogpsError(f"the table must have two dimensions, not {head.weight.shape}")
    vocab, features = head.weight.shape if head.orientation == "vd" else head.weight.shape[::-1]
    if features != hidden.shape[2] or vocab < 1 or features < 1:
        other = "; is its orientation the other one?" if vocab == hidden.shape[2] else ""
        raise LogpsError(f"the table has {vocab} entries of {features} features, hidden has {hidden.shape[2]}{other}")
    parts = {"hidden": hidden, "the table": head.weight}
    if head.bias is not None:
        parts["bias"] = _shaped("bias", head.bias, (vocab,))
    if head.norm is not None:
        parts["the norm's scale"] = _shaped("the norm's scale", head.norm.scale, (features,))
    for name, array in parts.items():
        check_float(name, array.dtype)


def check_float(name: str, dtype: Any) -> None:
    """Refuse what is no floating dtype, and those of 8 bits, which need scales that nobody gives here.

    Raises:
      LogpsError: naming it.
    """
    try:
        dtype = jnp.dtype(dtype)
    except TypeError:
        known = False
    else:
        known = dtype.name in FLOATS
    if not known:
        raise LogpsError(f"{name} must be one of {', '.join(FLOATS)}, not {dtype}")


def check_by_token(shape: tuple[int, int], segment_ids: Any, needed: Any, temperature: Any) -> None:
    """Refuse arrays by token that are not [rows, length] of the right kind, and temperatures that are none.

    Raises:
      LogpsError: naming the array.
    """
    if segment_ids is not None and not jnp.issubdtype(_shaped("segment_ids", segment_ids, shape).dtype, jnp.integer):
        raise LogpsError(f"segment_ids must be integers, not {segment_ids.dtype}")
    if needed is not None and _shaped("needed", needed, shape).dtype != jnp.bool_:
        raise LogpsError(f"needed must be bool, not {needed.dtype}")
    if isinstance(temperature, int | float):
        check_positive("temperature", temperature)
    elif jnp.shape(temperature) not in ((), shape[:1], shape):
        form = f"a scalar, [rows] or [rows, length] = {shape}"
        raise LogpsError(f"temperature must be {form}, not {jnp.shape(temperature)}")


def check_positive(name: str, value: float | None) -> None:
    """Refuse a number that is not above 0 and finite; None is no number.

    Raises:
      LogpsError: naming it.
    """
    if value is not None and not (isinstance(value, int | float) and 0 < value < math.inf):
        raise LogpsError(f"{name} must be a number above 0 and finite, not {value!r}")


def check_share(name: str, value: bool | float) -> None:
    """Refuse a share that is neither True nor False, nor a number above 0 and at most 1.

    Raises:
      LogpsError: naming it.
    """
    if not isinstance(value, Real | np.bool_) or not (value is False or value is np.False_ or 0 < value <= 1):
        raise LogpsError(f"{name} must be True, False, or a share above 0 and at most 1, not {value!r}")


def check_layout(layout: Layout | None) -> None:
    """Refuse a layout that is none, or whose axes are no tuples of names; None is no layout.

    Raises:
      LogpsError: naming what is wrong.
    """
    if layout is None:
        return
    if not isinstance(layout, Layout):
        raise LogpsError(f"layout must be a Layout, not {type(layout).__name__}")
    for name in ("batch", "sequence", "table_vocab", "table_embed"):
        _check_names(name, getattr(layout, name))


def check_devices(along: Mapping[str, int]) -> None:
    """Refuse an axis that has no device.

    Raises:
      LogpsError: naming it.
    """
    for axis, devices in along.items():
        if not isinstance(devices, int) or devices < 1:
            raise LogpsError(f"mesh: the axis {axis!r} must have at least 1 device, not {devices!r}")


def _check_names(name: str, axes: Any) -> None:
    if not isinstance(axes, tuple) or not all(isinstance(axis, str) for axis in axes):
        raise LogpsError(f"{name} must be a tuple of names of mesh axes, as ('data',), not {axes!r}")


def check_axes(layout: Layout, strategy: Strategy, mesh_axes: tuple[str, ...]) -> None:
    """Refuse axes that the mesh does not have, or that shard two dimensions of one array.

    Raises:
      LogpsError: naming the axis.
    """
    groups = {
        "batch and sequence": layout.tokens,
        "table_vocab and table_embed": layout.table,
        "vocab_axes": strategy.vocab_axes,
    }
    for name, axes in groups.items():
        for axis in axes:
            if axis not in mesh_axes:
                raise LogpsError(f"{name}: the mesh has no axis {axis!r}, it has {', '.join(mesh_axes)}")
            if axes.count(axis) > 1:
                raise LogpsError(f"{name}: the axis {axis!r} is named twice")


def check_choices(strategy: str | Strategy, mode: str, chunk_tokens: int | None, *, one_pass: bool) -> None:
    """Refuse a strategy or mode that is none, numbers of blocks or tokens below 1, and blocks for a loss in one pass.

    Raises:
      LogpsError: naming the setting.
    """
    if mode not in ("error", "fallback"):
        raise LogpsError(f"mode must be 'error' or 'fallback', not {mode!r}")
    numbers = [("chunk_tokens", chunk_tokens)]
    if isinstance(strategy, Strategy):
        _check_names("vocab_axes", strategy.vocab_axes)
        numbers += [("vocab_blocks", strategy.vocab_blocks), ("chunk_tokens", strategy.chunk_tokens)]
    elif strategy != "auto":
        raise LogpsError(f"strategy must be 'auto' or a Strategy, not {strategy!r}")
    for name, value in numbers:
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise LogpsError(f"{name} must be a whole number, at least 1, not {value!r}")
    if one_pass and isinstance(strategy, Strategy) and strategy.vocab_blocks > 1:
        raise LogpsError("a loss in one pass sees the vocabulary whole: vocab_blocks must be 1")


def _shaped(name: str, array: Any, shape: tuple[int, ...]) -> Any:
    if jnp.shape(array) != shape:
        raise LogpsError(f"{name} must be {list(shape)}, not {list(jnp.shape(array))}")
    return array
