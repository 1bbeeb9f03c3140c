"""Whether a function of arrays treats each element by itself: read off its trace, not off its name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

_PROBE, _OTHER, _FLAT = (2, 3), (5, 7), (4,)
_MIXING = {
    *("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"),
    *("sort", "top_k", "rev", "pad", "gather", "dynamic_update_slice", "dot_general", "conv_general_dilated", "fft"),
}
_MIXING_STEMS = ("scatter", "reduce_window", "select_and_scatter")
"""Primitives, and beginnings of their names, that carry elements from place to place, or treat places differently, and
may keep the shape."""


def mixing_primitive(function: Callable[..., Any], dtypes: Sequence[Any]) -> str | None:
    """Name of the first primitive by which ``function`` lets elements meet, or None if it lets none.

    The function is traced on arrays of one shape. What depends on them must keep that shape all the way, which leaves
    no room for a mean over a sequence, a slice or a roll; and it must not sort, sum up or look up.

    Raises:
      TypeError: the result is not one array of that shape.
    """
    closed = _traced(function, dtypes, _PROBE)
    return _search(closed.jaxpr, set(closed.jaxpr.invars))


def placing_primitive(function: Callable[..., Any], dtypes: Sequence[Any]) -> str | None:
    """Name of the first primitive by which ``function`` gives an element what its place, or the shape, has a part in.

    A function that divides by the size of its argument, or weighs elements by an ``arange``, lets none meet; but what
    it is given is now a chunk and now a shard. It is traced on two shapes, which must make no difference.

    Raises:
      TypeError, ValueError, IndexError: its own, on a shape that it does not take; TypeError too where it closes over
        traced arrays.
    """
    one, other = (_traced(function, dtypes, shape) for shape in (_PROBE, _OTHER))
    jax.eval_shape(function, *(jax.ShapeDtypeStruct(_FLAT, dtype) for dtype in dtypes))
    if any(isinstance(x, jax.core.Tracer) for x in one.consts):
        raise TypeError("it closes over a traced array: pass it as aux")
    if not all(np.array_equal(a, b) for a, b in zip(one.consts, other.consts, strict=False)):
        return "a constant of the shape of its arguments"
    return _compare(one.jaxpr, other.jaxpr)


def _traced(function: Callable[..., Any], dtypes: Sequence[Any], shape: tuple[int, ...]) -> ClosedJaxpr:
    arguments = [jax.ShapeDtypeStruct(shape, dtype) for dtype in dtypes]
    closed, out = jax.make_jaxpr(function, return_shape=True)(*arguments)
    if getattr(out, "shape", None) != shape or not jnp.issubdtype(out.dtype, jnp.floating):
        raise TypeError("it must give one floating array, of the shape of its arguments")
    return closed


def _compare(one: Jaxpr, other: Jaxpr) -> str | None:
    """The first primitive that is another one, or has another number in it, or makes what no broadcast can."""
    for a, b in zip(one.eqns, other.eqns, strict=False):
        name = a.primitive.name
        if name != b.primitive.name or _numbers(a) != _numbers(b):
            return name
        grows = [v.aval.shape for v in (*a.invars, *a.outvars)] != [v.aval.shape for v in (*b.invars, *b.outvars)]
        if grows and (name == "iota" or any(v.aval.shape != _PROBE for v in a.outvars)):
            return name
        for inner in zip(_inner(a.params), _inner(b.params), strict=True):
            found = _compare(*inner)
            if found:
                return found
    return None if len(one.eqns) == len(other.eqns) else "a form of its own for each shape"


def _numbers(equation: JaxprEqn) -> list[str]:
    return [repr(v.val) for v in equation.invars if isinstance(v, Literal)]


def _search(jaxpr: Jaxpr, varying: set[Var]) -> str | None:
    """The first mixing primitive among equations that depend on ``varying``, which grows by what depends on it."""
    for equation in jaxpr.eqns:
        touched = [not isinstance(v, Literal) and v in varying for v in equation.invars]
        if not any(touched):
            continue
        name = equation.primitive.name
        if name in _MIXING or name.startswith(_MIXING_STEMS) or any(v.aval.shape != _PROBE for v in equation.outvars):
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
