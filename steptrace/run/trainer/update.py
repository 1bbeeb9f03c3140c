"""The update: one division by the total count, one optimizer step, or none when the gradient is no number."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from steptrace.diag.training import OptimizerError
from steptrace.run.trainer.accumulate import Accumulator
from steptrace.run.trainer.metrics import packed

SCHEDULE_STATES = frozenset(
    {"ScaleByScheduleState", "WrappedScheduleState", "InjectHyperparamsState", "InjectStatefulHyperparamsState"}
)
"""Optax states whose ``count`` drives a schedule; the ``count`` of moments (Adam's bias correction) is not here."""


class Updated(NamedTuple):
    """What an update gives back.

    Attributes:
      params: the parameters.
      optimizer: the optimizer's state.
      acc: the accumulator, cleared.
      rest: the model's other state.
      applied: int32 scalar, updates applied so far.
      record: float32 vector, see `metrics.Record`; nothing donates it, so it can be waited on.
    """

    params: Any
    optimizer: Any
    acc: Accumulator
    rest: Any
    applied: jax.Array
    record: jax.Array


def update_leaf(
    optimizer: optax.GradientTransformation, names: tuple[str, ...], *, count_skips: bool
) -> Callable[..., Updated]:
    """``f(params, state, acc, rest, new_rest, applied)`` makes one update; the first three may be donated.

    The gradient sum is divided by the total count here and nowhere else. When its norm is not finite, or
    nothing was counted, parameters, optimizer state and ``rest`` come back bit for bit as they were; only with
    ``count_skips`` do the schedule counts (`SCHEDULE_STATES`) move on after a gradient that is not finite.
    The accumulator is cleared and the record made either way.
    """
    apply = _driven(optimizer)

    def update(params: Any, state: Any, acc: Accumulator, rest: Any, new_rest: Any, applied: jax.Array) -> Updated:
        counted = acc.count > 0
        divisor = jnp.where(counted, acc.count, 1)
        grads = jax.tree.map(lambda total: total / divisor.astype(total.dtype), acc.grads)
        norm = optax.tree.norm(grads)
        finite = jnp.isfinite(norm) & jnp.isfinite(acc.count)
        ok = finite & counted
        updates, new_state = apply(grads, state, params, value=acc.loss / divisor)
        new_params = optax.apply_updates(params, updates)
        kept = _chosen(~finite, schedules_moved(state), state) if count_skips else state
        applied = applied + ok
        head = {"loss": acc.loss, "count": acc.count, "grad_norm": norm, "skipped": ~ok, "version": applied}
        return Updated(
            _chosen(ok, new_params, params),
            _chosen(ok, new_state, kept),
            jax.tree.map(jnp.zeros_like, acc),
            _chosen(ok, new_rest, rest),
            applied,
            packed(head, acc.aux, names),
        )

    return update


def schedules_moved(state: Any) -> Any:
    """The optimizer state with the count of each schedule one further, and nothing else changed."""

    def of_schedule(path: Any, _: Any) -> bool:
        return getattr(path[-1], "tuple_name", "") in SCHEDULE_STATES

    # Optax knows the type of the state a count stands in, and JAX's paths do not; its `tree_set` misses counts
    # that stand in a dict below another count.
    found = {_words(path) for path, _ in optax.tree_utils.tree_get_all_with_path(state, "count", of_schedule)}
    return jax.tree_util.tree_map_with_path(lambda path, leaf: leaf + 1 if _words(path) in found else leaf, state)


def _words(path: Any) -> tuple[str, ...]:
    """A path as names, the same for optax's and for JAX's keys."""
    return tuple(str(next(getattr(key, of) for of in ("name", "key", "idx") if hasattr(key, of))) for key in path)


def check_optimizer(optimizer: Any, params: Any) -> Any:
    """The optimizer's initial state for these parameters, as abstract arrays.

    Raises:
      OptimizerError: it is no gradient transformation, needs more than gradients, or its state changes form.
    """
    if not (callable(getattr(optimizer, "init", None)) and callable(getattr(optimizer, "update", None))):
        raise OptimizerError(f"an optimizer needs init and update, as optax transforms have, not a {_name(optimizer)}")
    try:
        state = jax.eval_shape(optimizer.init, params)
        apply = _driven(optimizer)
        scalar = jax.ShapeDtypeStruct((), jnp.float32)
        after = jax.eval_shape(lambda p, s, value: apply(p, s, p, value=value)[1], params, state, scalar)
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise OptimizerError(f"the optimizer cannot be driven by gradients alone: {reason}") from error
    structures: set[Any] = {jax.tree.structure(state), jax.tree.structure(after)}
    if len(structures) > 1:
        raise OptimizerError("the optimizer's state changes its structure with an update")
    return state


def _driven(optimizer: optax.GradientTransformation) -> Callable[..., Any]:
    """The transform's update, called with the mean loss as ``value``; one that has no use for it is not given it."""
    apply: Callable[..., Any] = optax.with_extra_args_support(optimizer).update
    try:
        inspect.signature(apply).bind(None, None, None, value=None)
    except TypeError:
        return lambda grads, state, params, value: apply(grads, state, params)
    return apply


def _chosen(condition: jax.Array, yes: Any, no: Any) -> Any:
    """One of two trees of the same structure, by a device flag, in the dtypes of ``no``."""

    def pick(new: jax.Array, old: jax.Array) -> jax.Array:
        same = new.dtype == old.dtype or jnp.issubdtype(old.dtype, jax.dtypes.extended)
        return jnp.where(condition, new if same else new.astype(old.dtype), old)

    return jax.tree.map(pick, yes, no)


def _name(value: Any) -> str:
    return type(value).__name__
