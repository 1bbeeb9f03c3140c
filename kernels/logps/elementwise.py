"""Whether a function of arrays treats each element by itself: read off its trace, not off its name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, Var

_PROBE = (2, 3)
_MIXING = {
    *("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"),
    *("sort", "rev", "gather", "scatter", "dot_general", "conv_general_dilated", "fft"),
}
"""Primitives that carry elements from place to place and may keep the shape."""


def mixing_primitive(function: Callable[..., Any], dtypes: Sequence[Any]) -> str | None:
    """Name of the first primitive by which ``function`` lets elements meet, or None if it lets none.

    The function is traced on arrays of one shape. What depends on them must keep that shape all the way, which leaves
    no room for a mean over a sequence, a slice or a roll; and it must not sort, sum up or look up.

    Raises:
      TypeError: the result is not one array of that shape.
    """
    arguments = [jax.ShapeDtypeStruct(_PROBE, dtype) for dtype in dtypes]
    closed, shape = jax.make_jaxpr(function, return_shape=True)(*arguments)
    if getattr(shape, "shape", None) != _PROBE or not jnp.issubdtype(shape.dtype, jnp.floating):
        raise TypeError("it must give one floating array, of the shape of its arguments")
    return _search(closed.jaxpr, set(closed.jaxpr.invars))


def _search(jaxpr: Jaxpr, varying: set[Var]) -> str | None:
    """The first mixing primitive among equations that depend on ``varying``, which grows by what depends on it."""
    for equation in jaxpr.eqns:
        touched = [not isinstance(v, Literal) and v in varying for v in equation.invars]
        if not any(touched):
            continue
        name = equation.primitive.name
        if name in _MIXING or any(v.aval.shape != _PROBE for v in equation.outvars):
            return name
        for inner in _inner(equation.params):
            outer = touched[len(touched) - len(inner.invars) :]
            found = _search(inner, {v for v, t in zip(inner.invars, outer, strict=True) if t})
            if found:
                return found
        varying.update(equation.outvars)
    return None


def _inner(parameters: dict[str, Any]) -> list[Jaxpr]:
    """Bodies of a call, a branch or a loop."""
    values = [v for value in parameters.values() for v in (value if isinstance(value, tuple | list) else [value])]
    closed = [v.jaxpr if isinstance(v, ClosedJaxpr) else v for v in values]
    return [v for v in closed if isinstance(v, Jaxpr)]
