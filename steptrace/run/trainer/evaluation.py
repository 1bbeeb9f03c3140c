"""Evaluation: what a loss gives on micro-batches, without a gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from steptrace.run.models.split import SplitModel
from steptrace.run.trainer.accumulate import Aux, Loss, loss_sums

Sums = tuple[jax.Array, jax.Array, Aux]
"""The sum of the loss terms, their number, and sum and weight of each metric; float32 scalars."""


def evaluate_leaf(split: SplitModel, loss: Loss) -> Callable[[Any, Any, Any], Sums]:
    """``f(params, rest, arrays)`` gives the sums of one micro-batch; the model's new other state is let go."""
    sums = loss_sums(split, loss)

    def evaluate(params: Any, rest: Any, arrays: Any) -> Sums:
        total, (count, aux, _, _) = sums(params, rest, arrays)
        return total, count, aux

    return evaluate


def evaluated(sums: Sequence[Sums]) -> dict[str, float]:
    """Means over all that was evaluated: ``loss``, each metric by its weight, and ``count``; waits for them."""
    made = jax.device_get(list(sums))
    count = sum(float(part[1]) for part in made)
    found = {"loss": _mean(sum(float(part[0]) for part in made), count), "count": count}
    for name in sorted({name for part in made for name in part[2]}):
        pairs = [part[2][name] for part in made if name in part[2]]
        found[name] = _mean(sum(float(total) for total, _ in pairs), sum(float(weight) for _, weight in pairs))
    return found


def _mean(total: float, weight: float) -> float:
    return total / weight if weight else 0.0
