"""A built model, called on packed rows; what it takes and gives is checked while a leaf is traced."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import jax.numpy as jnp

from steptrace.diag.training import ModelError


def packed_logits(model: Any, tokens: jax.Array, positions: jax.Array, segment_ids: jax.Array) -> jax.Array:
    """Logits [rows, length, vocab] of a causal model called as ``model(tokens, positions, segment_ids)``.

    Args:
      model: a built model.
      tokens: int32 [rows, length].
      positions: int32 [rows, length], 0 at the first token of each sequence.
      segment_ids: int32 [rows, length], 0 at padding.

    Raises:
      ModelError: it cannot be called like that, or gives something else.
    """
    name = str(getattr(model, "name_of_module", type(model).__name__))
    try:
        inspect.signature(model).bind(tokens, positions, segment_ids)
    except TypeError as error:
        raise ModelError(
            f"{name} cannot be called as model(tokens, positions, segment_ids): {error}",
            help="let `__call__` take the three arrays, each [rows, length], or bring a loss that calls it otherwise",
        ) from None
    except ValueError:  # no signature to tell by; the call itself will
        pass
    logits = model(tokens, positions, segment_ids)
    shape = getattr(logits, "shape", None)
    fits = shape is not None and len(shape) == 3 and tuple(shape[:2]) == tuple(tokens.shape) and shape[2] > 0
    if not fits or not jnp.issubdtype(logits.dtype, jnp.floating):
        given = f"a {type(logits).__name__}" if shape is None else f"{logits.dtype} {list(shape)}"
        rows, length = tokens.shape
        raise ModelError(
            f"{name} gave {given} as the logits of [{rows}, {length}] tokens, not float [rows, length, vocab]"
        )
    result: jax.Array = logits
    return result
