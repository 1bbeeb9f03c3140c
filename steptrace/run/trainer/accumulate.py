"""Forward, backward, and the accumulator: un-normalised sums over the micro-batches of a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from steptrace.diag.training import LossError
from steptrace.run.models.split import SplitModel
from steptrace.run.trainer.batch import Batch
from steptrace.run.trainer.metrics import RESERVED
from steptrace.run.trainer.replay import Replay, check_state

Aux = dict[str, tuple[jax.Array, jax.Array]]


class Loss(Protocol):
    """What a trainer minimises."""

    def __call__(self, model: Any, batch: Mapping[str, jax.Array], /) -> tuple[Any, Any, Mapping[str, tuple[Any, Any]]]:
        """The sum of the loss terms, their number, and metrics by name, each as (sum, weight); all scalars."""
        ...


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Accumulator:
    """Sums over the micro-batches of one step so far.

    Attributes:
      grads: the gradient of ``loss``, like the parameters, in float32 (or wider where the parameters are).
      loss: float32 scalar, sum of the loss terms.
      count: float32 scalar, their number.
      aux: sum and weight of each metric, float32 scalars.
    """

    grads: Any
    loss: jax.Array
    count: jax.Array
    aux: Aux


def zeros(params: Any, names: tuple[str, ...]) -> Accumulator:
    """An accumulator of nothing, with these metrics."""
    grads = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, _wide(leaf.dtype)), params)
    return Accumulator(grads, _zero(), _zero(), {name: (_zero(), _zero()) for name in names})


def loss_sums(
    split: SplitModel, loss: Loss, replay: Replay | None = None
) -> Callable[..., tuple[jax.Array, tuple[jax.Array, Aux, Any, jax.Array | None]]]:
    """``f(params, rest, arrays)`` gives the loss sum; beside it its count, metrics, the model's new state, and a flag.

    The flag says whether the model dropped tokens; it is None without ``replay``.

    Raises:
      LossError: the loss cannot be called.
    """
    if not callable(loss):
        raise LossError(f"a loss is called as loss(model, batch); a {type(loss).__name__} cannot be called")

    def sums(
        params: Any, rest: Any, arrays: dict[str, jax.Array]
    ) -> tuple[jax.Array, tuple[jax.Array, Aux, Any, jax.Array | None]]:
        model = split.build(params, rest)
        watched = model if replay is None else replay.watch(model)
        total, count, aux = checked(loss(watched, Batch(arrays)))
        flag = None if replay is None else replay.flag(watched)
        after = split.collect(watched)
        if replay is not None:
            check_state(rest, after)
        return total, (count, aux, after, flag)

    return sums


def fwd_bwd_leaf(
    split: SplitModel, loss: Loss, replay: Replay | None = None
) -> Callable[..., tuple[Accumulator, Any, jax.Array, jax.Array | None]]:
    """``f(acc, params, rest, arrays)`` adds one micro-batch to ``acc``, which may be donated.

    It gives the accumulator, the model's new other state, a scalar to wait on that nothing donates, and with
    ``replay`` the flag: where it is set, the accumulator is bit for bit what it was.
    """
    grad = jax.value_and_grad(loss_sums(split, loss, replay), has_aux=True)

    def fwd_bwd(
        acc: Accumulator, params: Any, rest: Any, arrays: Any
    ) -> tuple[Accumulator, Any, jax.Array, jax.Array | None]:
        (total, (count, aux, rest, flag)), grads = grad(params, rest, arrays)

        def summed(old: jax.Array, new: jax.Array) -> jax.Array:
            both = old + new.astype(old.dtype)
            return both if flag is None else jnp.where(flag, old, both)

        return jax.tree.map(summed, acc, Accumulator(grads, total, count, aux)), rest, total, flag

    return fwd_bwd


def checked(result: Any) -> tuple[jax.Array, jax.Array, Aux]:
    """What a loss gave back, as float32 scalars; raises `LossError` when it is not (sum, count, aux)."""
    if not (isinstance(result, tuple) and len(result) == 3 and isinstance(result[2], Mapping)):
        raise LossError(f"the loss must give (sum, count, aux), not {_described(result)}")
    total, count = (_scalar(value, name) for value, name in zip(result, ("sum", "count"), strict=False))
    if not jnp.issubdtype(jnp.asarray(result[0]).dtype, jnp.floating):
        raise LossError("the loss's sum is not floating, so it has no gradient")
    aux: Aux = {}
    for name, pair in result[2].items():
        if not isinstance(name, str):
            raise LossError(f"the loss reports a metric under {name!r}, and the name of a metric is a text")
        if name in RESERVED:
            raise LossError(f"a loss cannot report `{name}`: the trainer reports a metric of that name")
        if not (isinstance(pair, tuple) and len(pair) == 2):
            raise LossError(f"metric `{name}` must be (sum, weight), not {_described(pair)}")
        aux[name] = (_scalar(pair[0], f"`{name}` sum"), _scalar(pair[1], f"`{name}` weight"))
    return total, count, aux


def _scalar(value: Any, name: str) -> jax.Array:
    """The value as a float32 scalar."""
    try:
        array = jnp.asarray(value)
    except (TypeError, ValueError):
        raise LossError(f"the loss's {name} is no number but {_described(value)}") from None
    if array.shape:
        raise LossError(f"the loss's {name} must be a scalar, not an array {list(array.shape)}")
    return array.astype(jnp.float32)


def _wide(dtype: Any) -> Any:
    """float32, or the parameter's own dtype where that is wider."""
    return jnp.promote_types(dtype, jnp.float32)


def _zero() -> jax.Array:
    return jnp.zeros((), jnp.float32)


def _described(value: Any) -> str:
    """What came instead, in a message."""
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return f"an array {list(value.shape)}" if hasattr(value, "shape") else f"a {type(value).__name__}"
