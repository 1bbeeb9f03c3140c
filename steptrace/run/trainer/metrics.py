"""Records of updates: built on the device, labelled with their step when made, fetched later."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

HEAD = ("loss", "count", "grad_norm", "skipped", "version")
RESERVED = frozenset({*HEAD, "step", "first_step", "updates", "dropped_records", "replayed"})
"""Names that the trainer reports itself."""


@dataclass(frozen=True, slots=True)
class Record:
    """One update.

    Attributes:
      step: the step it belongs to, taken from its micro-batches.
      names: names of the loss's metrics.
      values: float32 vector: `HEAD`, with the loss as a sum, then the sums of the metrics, then their weights.
      replayed: how many of its micro-batches were run again; None for a trainer that replays nothing.
    """

    step: int
    names: tuple[str, ...]
    values: jax.Array | np.ndarray
    replayed: int | None = None


Aside = tuple[tuple[Record, ...], int]
"""Records that were set aside, and how many before them were lost."""


class Records:
    """The last records, and how many older ones they have pushed out since they were set aside."""

    def __init__(self, most: int) -> None:
        self._kept: deque[Record] = deque(maxlen=most)
        self._dropped = 0

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def last(self) -> Record | None:
        """The newest record, if there is one."""
        return self._kept[-1] if self._kept else None

    def append(self, record: Record) -> None:
        """Keep a record."""
        self._dropped += len(self._kept) == self._kept.maxlen
        self._kept.append(record)

    def set_aside(self) -> Aside:
        """All of them, which are kept here no more."""
        aside = (tuple(self._kept), self._dropped)
        self._kept.clear()
        self._dropped = 0
        return aside


def packed(
    head: dict[str, jax.Array], aux: dict[str, tuple[jax.Array, jax.Array]], names: tuple[str, ...]
) -> jax.Array:
    """The vector of a record: one small array, so that fetching it is one transfer."""
    values = [head[name] for name in HEAD] + [aux[name][part] for part in (0, 1) for name in names]
    return jnp.stack([jnp.asarray(value, jnp.float32) for value in values])


def fetched(aside: Aside) -> dict[str, float]:
    """`merged` of records that were set aside, with ``dropped_records`` when some were lost; waits for the device."""
    records, dropped = aside
    return merged(records) | ({"dropped_records": float(dropped)} if dropped else {})


def merged(records: Sequence[Record]) -> dict[str, float]:
    """Metrics over one or more updates, as over their union; waits for the device.

    ``loss`` and the loss's metrics are sums over all updates divided by the sum of their weights (0 when
    nothing was counted), ``count`` and ``skipped`` are sums, ``grad_norm`` is the mean, ``version`` that after the
    last update. ``step`` is the step of the last update, ``first_step`` that of the first, ``updates`` their number.
    ``replayed``, the number of micro-batches that were run again, is there under replay alone.
    """
    if not records:
        return {}
    rows = [np.asarray(record.values, np.float64) for record in records]
    heads = [dict(zip(HEAD, row[: len(HEAD)], strict=True)) for row in rows]
    total = {name: sum(head[name] for head in heads) for name in HEAD}
    sums: dict[str, np.ndarray] = {}
    for record, row in zip(records, rows, strict=True):
        pairs = row[len(HEAD) :].reshape(2, len(record.names)).T
        for name, pair in zip(record.names, pairs, strict=True):
            sums[name] = sums.get(name, np.zeros(2)) + pair
    metrics = {
        "step": records[-1].step,
        "first_step": records[0].step,
        "updates": len(records),
        "loss": _ratio(total["loss"], total["count"]),
        "count": total["count"],
        "grad_norm": total["grad_norm"] / len(records),
        "skipped": total["skipped"],
        "version": heads[-1]["version"],
        **{name: _ratio(*pair) for name, pair in sums.items()},
    }
    if records[-1].replayed is not None:
        metrics["replayed"] = sum(record.replayed or 0 for record in records)
    return {name: float(value) for name, value in metrics.items()}


def _ratio(total: float, weight: float) -> float:
    """Total by weight; 0 over nothing."""
    return total / weight if weight else 0.0
