"""The trainer's jitted leaves, and how often each was traced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from steptrace.run.models.split import SplitModel
from steptrace.run.trainer.accumulate import Accumulator, Loss, fwd_bwd_leaf, loss_sums, zeros
from steptrace.run.trainer.batch import Batch
from steptrace.run.trainer.evaluation import evaluate_leaf
from steptrace.run.trainer.mesh import Placement
from steptrace.run.trainer.replay import Replay
from steptrace.run.trainer.update import Updated, update_leaf


class Leaves:
    """Jitted leaves on split state.

    Attributes:
      traces: how often each leaf was traced, by name; it stands still after warm-up.
      forms: the forms of what `accumulate.loss_sums` gives; computes nothing.
      makes: what of log-probs it can do: ``old_logps``, and ``logps_head``, by the head that is not dense.
      copy: a tree, copied; what comes out shares no buffer with what went in.
      fwd_bwd: see `accumulate.fwd_bwd_leaf`; donates the accumulator.
      dropless: the same by the program that never drops tokens and has no flag; without replay it is ``fwd_bwd``.
      evaluate: see `evaluation.evaluate_leaf`; never drops under replay.
      logps: ``f(params, rest, arrays)`` gives float32 [rows, length]; never drops under replay.
    """

    def __init__(
        self,
        split: SplitModel,
        loss: Loss,
        logps_fn: Callable[..., Any] | None,
        replay: Replay | None = None,
        placement: Placement | None = None,
    ) -> None:
        self.traces: Counter[str] = Counter()
        self._placement = placement or Placement()
        whole = self._placement.whole
        self.makes = {"old_logps": logps_fn is not None, "logps_head": getattr(loss, "head", "dense") != "dense"}
        self._acc = Accumulator(self._placement.params, whole, whole, whole)
        trained = (self._acc, whole, whole, whole)
        self.forms = self._placement.entered(partial(jax.eval_shape, loss_sums(split, loss, replay)))
        self.copy = self._jit("copy", lambda tree: jax.tree.map(_strong, tree))
        self.fwd_bwd = self.dropless = self._jit("fwd_bwd", fwd_bwd_leaf(split, loss, replay), (0,), trained)
        if replay is not None:
            split = replay.dropless(split)
            self.dropless = self._jit("dropless", fwd_bwd_leaf(split, loss), (0,), trained)
        self.evaluate = self._jit("evaluate", evaluate_leaf(split, loss))
        self.logps = None if logps_fn is None else self._jit("old_logps", _logps_leaf(split, logps_fn))

    def init(self, optimizer: optax.GradientTransformation, params: Any) -> Any:
        """The optimizer's initial state, in arrays of its own."""
        self._state = self._placement.state(optimizer.init, params)
        return self._placement.put(self.copy(self._jit("init", optimizer.init)(params)), self._state)

    def zeros(self, names: tuple[str, ...]) -> Any:
        """The leaf of `accumulate.zeros`: an accumulator of nothing, like the parameters."""
        return self._jit("zeros", lambda params: zeros(params, names), gives=self._acc)

    def update(self, optimizer: optax.GradientTransformation, names: tuple[str, ...], count_skips: bool) -> Any:
        """The leaf of `update.update_leaf`; donates parameters, optimizer state and accumulator."""
        whole = self._placement.whole
        gives = Updated(self._placement.params, self._state, self._acc, whole, whole, whole)
        return self._jit("update", update_leaf(optimizer, names, count_skips=count_skips), (0, 1, 2), gives)

    def _jit(self, name: str, function: Callable[..., Any], donate: tuple[int, ...] = (), gives: Any = None) -> Any:
        """The leaf; ``gives`` are the shardings of what it gives, on a mesh."""

        def leaf(*args: Any) -> Any:
            self.traces[name] += 1
            return function(*args)

        leaf.__name__ = name
        said = {} if gives is None or self._placement.whole is None else {"out_shardings": gives}
        return self._placement.entered(jax.jit(leaf, donate_argnums=donate, **said))


def _logps_leaf(split: SplitModel, logps_fn: Callable[..., Any]) -> Callable[..., jax.Array]:
    def logps(params: Any, rest: Any, arrays: dict[str, jax.Array]) -> jax.Array:
        out: jax.Array = logps_fn(split.build(params, rest), Batch(arrays))
        return out.astype(jnp.float32)

    return logps


def _strong(leaf: Any) -> jax.Array:
    """A copy with a dtype of its own: a weakly typed leaf would compile once more after the first update."""
    array = jnp.copy(leaf)
    return (
        array if jnp.issubdtype(array.dtype, jax.dtypes.extended) else jax.lax.convert_element_type(array, array.dtype)
    )
