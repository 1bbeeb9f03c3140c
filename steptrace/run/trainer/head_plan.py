"""Which head is best for a model on a mesh, why, and what it will send: known from sizes, before anything is built."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import jax

from steptrace.run.trainer.heads import HeadName, layout_on
from steptrace_kernels.logps import Head, Plan, plan
from steptrace_kernels.logps.choose import described
from steptrace_kernels.logps.prepare import DEFAULT_CHUNK


@dataclass(frozen=True)
class HeadSizes:
    """What the choice of a head depends on.

    Attributes:
      rows, length: of a micro-batch, in tokens.
      features: of a hidden state.
      vocab: entries of the table.
      devices: along each axis of the mesh; empty for one device without a mesh.
      dtype: of hidden states.
    """

    rows: int
    length: int
    features: int
    vocab: int
    devices: Mapping[str, int]
    dtype: str = "float32"


@dataclass(frozen=True)
class HeadPlan:
    """A head, and what is predicted of it.

    Attributes:
      head: which.
      reason: why, one sentence without quotation marks.
      bytes: what a device sends for it in a training call.
      logps_bytes: the same for a call that makes log-probs alone.
    """

    head: HeadName
    reason: str
    bytes: int
    logps_bytes: int


def planned_head(sizes: HeadSizes) -> HeadPlan:
    """The best head: what the kernel's own plan says of a mesh; on one device, where nothing is sent, by memory.

    There the sharded head is the chunked one without shard_map. It is worth its loop where a micro-batch has more
    tokens than it takes at a time.
    """
    if math.prod(sizes.devices.values()) > 1:
        return planned_shard_map(sizes)
    tokens = sizes.rows * sizes.length
    if tokens <= DEFAULT_CHUNK:
        reason = (
            f"one device: nothing is sent, and the {tokens} tokens of a micro-batch are one chunk of {DEFAULT_CHUNK}"
        )
        return HeadPlan("dense", reason, 0, 0)
    reason = f"one device: nothing is sent, and logits are made of {DEFAULT_CHUNK} of {tokens} tokens at a time"
    return HeadPlan("shard_map", reason, 0, 0)


def planned_shard_map(sizes: HeadSizes) -> HeadPlan:
    """What the sharded head will do there, whether or not it is the best."""
    training = kernel_plan(sizes)
    if training.strategy is None or training.cost is None:
        return HeadPlan("shard_map", f"chunked, without shard_map: {training.fallback_reason}", 0, 0)
    alone = kernel_plan(sizes, training).cost
    assert alone is not None, "what runs with a gradient runs without one"
    reason = "; ".join((described(training.strategy), *training.reasons))
    return HeadPlan("shard_map", reason, round(training.cost.bytes), round(alone.bytes))


def kernel_plan(sizes: HeadSizes, training: Plan | None = None) -> Plan:
    """The kernel's plan of a training call; given that, of a call of the same strategy that makes log-probs alone."""
    hidden = (sizes.rows, sizes.length, sizes.features)
    table = (sizes.features, sizes.vocab)
    strategy = "auto" if training is None or training.strategy is None else training.strategy
    return plan(
        jax.ShapeDtypeStruct(hidden, sizes.dtype),
        Head(jax.ShapeDtypeStruct(table, sizes.dtype), orientation="dv"),
        mesh=sizes.devices or None,
        layout=layout_on(sizes.devices, hidden, table) if sizes.devices else None,
        gradient=training is None,
        strategy=strategy,
    )
