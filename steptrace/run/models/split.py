"""A model as two pytrees and a pure function: what jitted leaves work on, for flax NNX and linen alike."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import nnx
from flax.core import unfreeze

from steptrace.diag.base import Note
from steptrace.diag.training import ModelError


@dataclass(frozen=True)
class SplitModel:
    """A model taken apart.

    Attributes:
      params: pytree of the trainable arrays; what trainer and rollout exchange as weights.
      rest: pytree of all other state (batch statistics, RNG streams for dropout).
      build: ``build(params, rest)`` gives a callable model; pure, for use inside ``jax.jit``.
      collect: ``collect(model)`` gives the ``rest`` of a built model after it was called.
    """

    params: Any
    rest: Any
    build: Callable[[Any, Any], Any]
    collect: Callable[[Any], Any]


def split_model(
    model: Any,
    *,
    linen_variables: Mapping[str, Any] | None = None,
    linen_rngs: Mapping[str, jax.Array] | None = None,
    wrt: Any = nnx.Param,
) -> SplitModel:
    """Split a flax model into trainable parameters and the rest.

    The arrays are the model's own, not copies.

    Args:
      model: a flax NNX module, or a linen module.
      linen_variables: for a linen module, its variables as ``init`` gave them; the collection ``params`` is
        trained, the others are state.
      linen_rngs: for a linen module that draws random numbers when called, a key for each stream
        (``{"dropout": key}``); a new key is split off at each call.
      wrt: for an NNX module, the filter that selects what is trained.

    Raises:
      ModelError: the model is neither, or has no trainable floating array.
    """
    if isinstance(model, nnx.Module):
        if linen_variables is not None or linen_rngs is not None:
            raise ModelError(
                f"{type(model).__name__} is an NNX module, which holds its variables and RNG streams itself"
            )
        split = _split_nnx(model, wrt)
    elif isinstance(model, nn.Module):
        split = _split_linen(model, linen_variables, linen_rngs or {})
    else:
        raise ModelError(
            f"a model must be a flax NNX or linen module, not {_described(model)}",
            help="wrap your apply function in a linen module, or its parameters in an NNX module",
        )
    _check_params(split.params, type(model).__name__)
    return split


def _split_nnx(model: nnx.Module, wrt: Any) -> SplitModel:
    graph, params, rest = nnx.split(model, wrt, ...)
    template = nnx.to_pure_dict(rest)

    def build(params: Any, rest: Any) -> Any:
        return nnx.merge(graph, params, rest)

    def collect(model: Any) -> Any:
        # Values that a call sowed are not state of the model: only what was there before is kept.
        return _pick(template, nnx.to_pure_dict(nnx.split(model, wrt, ...)[2]))

    return SplitModel(nnx.to_pure_dict(params), template, build, collect)


def _pick(template: Any, state: Any) -> Any:
    """The part of a nested dict that has the template's keys."""
    if not isinstance(template, dict):
        return state
    return {key: _pick(below, state[key]) for key, below in template.items()}


def _split_linen(module: nn.Module, variables: Mapping[str, Any] | None, rngs: Mapping[str, jax.Array]) -> SplitModel:
    name = type(module).__name__
    if variables is None or "params" not in variables:
        raise ModelError(
            f"the linen module {name} came without its variables",
            help="pass linen_variables=module.init(key, tokens, positions, segment_ids)",
        )
    variables = unfreeze(variables)  # a call gives plain dicts back, and the state keeps its form
    collections = {key: value for key, value in variables.items() if key != "params"}
    rest = {"collections": collections, "rngs": dict(rngs)}

    def build(params: Any, rest: Any) -> _BuiltLinen:
        return _BuiltLinen(module, params, rest)

    return SplitModel(variables["params"], rest, build, lambda model: model.rest)


class _BuiltLinen:
    """A linen module with its variables, called like the module; keeps the state its calls changed."""

    def __init__(self, module: nn.Module, params: Any, rest: Any) -> None:
        self._module = module
        self._params = params
        self.name_of_module = type(module).__name__
        self.__signature__ = inspect.signature(module.__call__)
        self.rest = rest

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        collections = self.rest["collections"]
        pairs = {name: jax.random.split(key) for name, key in self.rest["rngs"].items()}
        out, changed = self._module.apply(
            {"params": self._params, **collections},
            *args,
            rngs={name: pair[1] for name, pair in pairs.items()},
            mutable=list(collections),
            **kwargs,
        )
        self.rest = {
            "collections": {**collections, **changed},
            "rngs": {name: pair[0] for name, pair in pairs.items()},
        }
        return out


def _check_params(params: Any, name: str) -> None:
    """Refuse a model without anything to train, and parameters that have no gradient."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    if not leaves:
        raise ModelError(f"{name} has no trainable parameter", help="select what is trained with wrt=")
    wrong = [
        f"{jax.tree_util.keystr(path, simple=True, separator='.')} is {_described(leaf)}"
        for path, leaf in leaves
        if not (hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating))
    ]
    if wrong:
        notes = tuple(Note(line) for line in wrong)
        raise ModelError(f"{name} has parameters that are not floating arrays", notes=notes)


def _described(value: Any) -> str:
    """How a value is called in a message: its dtype when it is an array, else its type."""
    return f"an array of {value.dtype}" if hasattr(value, "dtype") else f"a {type(value).__name__}"
