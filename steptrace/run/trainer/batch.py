"""What a micro-batch's arrays must look like, and how they reach the device."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from steptrace.diag.base import Note
from steptrace.diag.training import MicroBatchError, MissingArrayError
from steptrace.lang.records import MicroBatch

TOKEN_ARRAYS: Mapping[str, type] = MappingProxyType(
    {
        "tokens": np.int32,
        "segment_ids": np.int32,
        "positions": np.int32,
        "loss_mask": np.float32,
        "rollout_logps": np.float32,
        "old_logps": np.float32,
        "ref_logps": np.float32,
        "advantages": np.float32,
    }
)
"""The arrays that every part knows by name, each [rows, length]."""

_KINDS = (jnp.number, jnp.bool_, jax.dtypes.extended)
"""What an array may hold."""

Signature = tuple[tuple[str, tuple[int, ...], str], ...]


class Batch(dict[str, jax.Array]):
    """The arrays a loss reads; asking for one that is not there is a coded error that names it."""

    def __missing__(self, name: str) -> jax.Array:
        there = ", ".join(sorted(self)) or "nothing"
        raise MissingArrayError(
            f"the loss reads `{name}`, which the micro-batch does not have",
            notes=(Note(f"it has {there}"),),
            help=f"run the op that adds `{name}` before fwd_bwd, or choose a loss that does not read it",
        )


def named(micro_batch: MicroBatch) -> str:
    """A micro-batch in a message."""
    return f"micro-batch {micro_batch.index} of step {micro_batch.step}"


def signature(arrays: Mapping[str, Any]) -> Signature:
    """Names, shapes and dtypes: micro-batches with one signature run one compiled leaf."""
    return tuple(
        sorted((name, np.shape(array), str(getattr(array, "dtype", type(array)))) for name, array in arrays.items())
    )


def check_arrays(arrays: Mapping[str, Any], where: str) -> None:
    """Check dtype, rank and shape of the arrays in `TOKEN_ARRAYS`, and that all others are arrays of numbers.

    Args:
      arrays: the micro-batch's arrays by name.
      where: which micro-batch, for the message.

    Raises:
      MicroBatchError: naming the first array that does not fit.
    """
    shape: tuple[int, ...] | None = None
    for name, array in arrays.items():
        if not hasattr(array, "dtype") or not any(jnp.issubdtype(array.dtype, kind) for kind in _KINDS):
            held = f"an array of {array.dtype}" if hasattr(array, "dtype") else f"a {type(array).__name__}"
            raise MicroBatchError(f"`{name}` of {where} is no array of numbers but {held}")
        if name not in TOKEN_ARRAYS:
            continue
        try:
            chex.assert_rank(array, 2)
            chex.assert_type(array, TOKEN_ARRAYS[name])
            shape = shape or tuple(array.shape)
            chex.assert_shape(array, shape)
        except AssertionError:
            wanted = f"{np.dtype(TOKEN_ARRAYS[name])} {list(shape) if shape else '[rows, length]'}"
            message = f"`{name}` of {where} is {array.dtype} {list(array.shape)}, not {wanted}"
            raise MicroBatchError(message) from None


def owned(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays as a leaf may keep them: host arrays copied, since JAX reads or even aliases them after the call."""
    return {name: array if isinstance(array, jax.Array) else np.array(array) for name, array in arrays.items()}
