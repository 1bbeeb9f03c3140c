"""What a user's function holds outside its operands: closure, globals that it names, defaults, its object."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from steptrace.run.digest import array_hash

_DEPTH = 4
_MOST = 20_000
_FOREIGN = ("jax", "jaxlib", "numpy", "flax", "optax", "orbax", "chex", "pytest", "_pytest", "absl")
"""Libraries whose functions and objects are not looked into."""


def held_by(function: Any) -> Iterator[tuple[str, Any]]:
    """Everything that a function reaches without being given it, each with a name; containers and objects opened.

    What it cannot see: state behind functions of compiled code, behind properties, in other processes, and whatever is
    looked up by a name that is computed.
    """
    seen: set[int] = set()
    pending = [(name, value, _DEPTH) for name, value in _roots(function)]
    while pending and len(seen) < _MOST:
        name, value, depth = pending.pop(0)
        if id(value) in seen:
            continue
        seen.add(id(value))
        yield name, value
        if depth:
            pending += [(inner, item, depth - 1) for inner, item in _inside(name, value)]


def weight_hashes(weights: Any) -> frozenset[bytes]:
    """Hashes of the arrays of a tree, by which copies of them are known; of those that are not all one number."""
    return frozenset(array_hash(leaf) for leaf in jax.tree.leaves(weights) if _telling(leaf))


def is_copy(value: Any, hashes: frozenset[bytes]) -> bool:
    """Whether a value is an array with the content of one of those hashed."""
    return isinstance(value, np.ndarray | jax.Array) and _telling(value) and array_hash(value) in hashes


def is_model(value: Any) -> bool:
    """Whether a value is a module of NNX, or part of one."""
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(value, nnx.Module | nnx.Variable | nnx.State)


def _telling(leaf: Any) -> bool:
    """Whether an array's content says where it comes from."""
    if isinstance(leaf, jax.Array) and (leaf.is_deleted() or jnp.issubdtype(leaf.dtype, jax.dtypes.extended)):
        return False
    array = np.asarray(leaf)
    return array.dtype != object and array.size > 1 and bool((array != array.flat[0]).any())


def _roots(function: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(function, functools.partial):
        yield from ((f"argument {index} of the partial", value) for index, value in enumerate(function.args))
        yield from function.keywords.items()
        yield from _roots(function.func)
    elif isinstance(function, MethodType):
        yield "self", function.__self__
        yield from _roots(function.__func__)
    elif isinstance(function, FunctionType):
        yield from _of_function(function)
    else:
        yield "self", function


def _of_function(function: FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not set yet
            continue
    names = frozenset(_names(function.__code__))
    for name in sorted(names):
        value = function.__globals__.get(name)
        if isinstance(value, ModuleType):
            if not _is_foreign(value.__name__):
                yield from ((f"{name}.{inner}", vars(value)[inner]) for inner in sorted(names) if inner in vars(value))
        elif value is not None:
            yield name, value
    yield from (function.__kwdefaults__ or {}).items()
    yield from ((f"default {index}", value) for index, value in enumerate(function.__defaults__ or ()))


def _names(code: CodeType) -> Iterator[str]:
    """Names that a code looks up among its globals or attributes, functions defined in it included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _inside(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What a value holds."""
    if isinstance(value, Mapping):
        yield from ((f"{name}[{key!r}]", item) for key, item in list(value.items())[:_MOST])
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"{name}[{index}]", item) for index, item in enumerate(list(value)[:_MOST]))
    elif isinstance(value, FunctionType | MethodType | functools.partial):
        if not _is_foreign(getattr(value, "__module__", None)):
            yield from ((f"{name}: {inner}", item) for inner, item in _roots(value))
    elif not isinstance(value, type | ModuleType) and not _is_foreign(type(value).__module__):
        yield from ((f"{name}.{inner}", item) for inner, item in _attributes(value))


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    yield from getattr(value, "__dict__", {}).items()
    for slot in getattr(type(value), "__slots__", ()):
        if isinstance(slot, str) and hasattr(value, slot):
            yield slot, getattr(value, slot)


def _is_foreign(module: str | None) -> bool:
    root = (module or "builtins").partition(".")[0]
    return root in _FOREIGN or root in sys.stdlib_module_names
