"""Rows and resources of the parts that laws split ops into: they stand in schedules, not in steps of users."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from steptrace.ir.kind import Attr, Given, Operand, OpKind, Variant
from steptrace.ir.resource import Resource, ResourceKind

CLOSES = Attr(
    "closes",
    str,
    choices=("update", "defer"),
    doc="what the call on the step's last micro-batch also does: apply the update, or hold it",
)
"""The attribute of `fwd_bwd` that makes its last call of a step carry the update, or hold it back."""

HEAD = (
    Attr(
        "head",
        str,
        choices=("auto", "dense", "shard_map"),
        doc="what makes log-probs: all logits at once, or a chunk at a time, sharded; auto takes what the part has",
    ),
    Attr("head_bytes", int, doc="bytes that a device is predicted to send for it in this call", least=0),
    Attr("head_reason", str, doc="why it was chosen"),
)
"""The attributes of ops that make log-probs, once a head was selected for them."""

UPDATE_READS = ("params", "grads", "optimizer", "trainer.step")
"""What an update reads."""

UPDATE_WRITES = ("params", "grads", "optimizer", "trainer.step", "trainer.metrics", "trainer.calls")
"""What an update writes."""

CLOSING = (
    Variant("closes", "update", UPDATE_READS, UPDATE_WRITES),
    Variant("closes", "defer", (), ("trainer.held",)),
)
"""Effects of closing a step; they belong to its last micro-batch, and are counted for each."""

LENT = Attr("lent", bool, doc="whether its micro-batches lie in buffers of a ring, which a `release` gives back")
"""The attribute of an op that hands out micro-batches by which each takes a buffer."""

LENDING = (Variant("lent", True, (), ("buffers.loop",)),)
"""Effects of lending: a buffer more is in use."""

OUTSIDE: Mapping[str, str] = MappingProxyType({"buffers.loop": "buffers.first"})
"""What an op that stands for one round outside its loop touches in place of what the rounds in the loop do."""

SCHEDULE_RESOURCES = (
    Resource("trainer.staged", ResourceKind.SLOT, 1, doc="the micro-batch that the trainer holds for a later call"),
    Resource(
        "trainer.attempts",
        ResourceKind.FIFO,
        doc="gradient sums, metrics and overflow flags of training calls that are not settled yet",
    ),
    Resource("trainer.held", ResourceKind.STATE, doc="whether the trainer holds back an update"),
    Resource(
        "trainer.copies",
        ResourceKind.SLOT,
        1,
        doc="copies of the parameters that are live at a time: all of those below",
    ),
    Resource("trainer.copies.sync", ResourceKind.CELL, doc="the copy of the parameters that a sync transfers"),
    Resource("trainer.copies.save", ResourceKind.CELL, doc="the copy of the trainer's state that a checkpoint writes"),
    Resource("trainer.record", ResourceKind.CELL, doc="metrics of the step on the device, apart from the live buffer"),
    Resource("rollout.arrived", ResourceKind.CELL, doc="weights that arrived at the rollout and are not applied yet"),
    Resource(
        "buffers.first", ResourceKind.FIFO, 2, doc="buffers in use by first micro-batches that stand before their loop"
    ),
    Resource("buffers.loop", ResourceKind.FIFO, doc="buffers in use by the micro-batches of loops"),
    Resource("sync.round", ResourceKind.STATE, doc="the sync round in flight: there is one at a time"),
)
"""Resources of the schedule rows."""

_MB = Operand("micro-batch", "micro_batch", ("advantages",))

SCHEDULE_ROWS = (
    OpKind(
        "stage_fwd_bwd",
        operands=(_MB,),
        results=(Given("request", "token"), Given("staged", "flag")),
        reads=("trainer.staged",),
        writes=("trainer.staged",),
        binds="trainer.stage_fwd_bwd",
        cost="transfer",
        laws=("stage",),
        polls=True,
        doc="Ships a micro-batch to the trainer if it is packed by now; `staged` is false when nothing is held there.",
        example='split(schedule, "fwd_bwd.first", law="stage")',
    ),
    OpKind(
        "poll_packed",
        operands=(_MB,),
        results=(Given("packed", "flag"),),
        may_fail=False,
        cost="none",
        laws=("poll",),
        polls=True,
        doc="Looks whether a micro-batch is packed by now, and waits for nothing.",
        example='guard(schedule, "fwd_bwd.first")',
    ),
    OpKind(
        "fwd_bwd_staged",
        operands=(Operand("request", "token"),),
        attrs=(*HEAD, CLOSES),
        variants=CLOSING,
        reads=("params", "grads", "trainer.staged"),
        writes=("grads", "trainer.metrics", "trainer.calls", "trainer.staged"),
        device="trainer",
        blocking=False,
        binds="trainer.fwd_bwd_staged",
        cost="device",
        laws=("stage", "logps-head"),
        doc="Forward and backward of the micro-batch that the trainer holds; the call carries no data.",
        example='split(schedule, "fwd_bwd.first", law="stage")',
    ),
    OpKind(
        "attempt_fwd_bwd",
        operands=(_MB,),
        attrs=(*HEAD, CLOSES),
        variants=CLOSING,
        reads=("params",),
        writes=("trainer.attempts", "trainer.calls"),
        device="trainer",
        blocking=False,
        binds="trainer.fwd_bwd",
        cost="device",
        laws=("settle", "stage", "poll", "logps-head"),
        doc="Forward and backward of one micro-batch, whose sums count once it is known that no token was dropped.",
        example='split(schedule, "fwd_bwd", law="settle")',
    ),
    OpKind(
        "attempt_staged",
        operands=(Operand("request", "token"),),
        attrs=(*HEAD, CLOSES),
        variants=CLOSING,
        reads=("params", "trainer.staged"),
        writes=("trainer.attempts", "trainer.calls", "trainer.staged"),
        device="trainer",
        blocking=False,
        binds="trainer.fwd_bwd_staged",
        cost="device",
        laws=("stage", "logps-head"),
        doc="The attempt on the micro-batch that the trainer holds; the call carries no data.",
        example='split(schedule, "attempt_fwd_bwd.first", law="stage")',
    ),
    OpKind(
        "settle",
        operands=(_MB,),
        attrs=(
            Attr("from_host", bool, doc="a rerun finds its micro-batch in the host memory of the step"),
            Attr("from_slot", bool, doc="a rerun finds its micro-batch where the trainer holds what was shipped ahead"),
        ),
        variants=(
            Variant("from_host", True, ("host[k]",)),
            Variant("from_slot", True, ("trainer.staged",)),
        ),
        reads=("params", "grads", "trainer.attempts"),
        writes=("grads", "trainer.metrics", "trainer.attempts"),
        awaits=("trainer.attempts",),
        device="trainer",
        binds="trainer.fwd_bwd",
        cost="device",
        laws=("settle",),
        doc="Reads the overflow flag of an attempt, runs its micro-batch again without dropping if it is set, and adds "
        "the sums and metrics of the one that counts.",
        example='split(schedule, "fwd_bwd", law="settle")',
    ),
    OpKind(
        "release",
        operands=(Operand("micro-batch", "micro_batch"),),
        reads=("buffers.loop",),
        writes=("buffers.loop",),
        frees=True,
        may_fail=False,
        cost="none",
        laws=("release",),
        doc="Gives a micro-batch's buffer back to the ring, once the last call that reads it is done.",
        example='split(schedule, "next_mb", law="release")',
    ),
    OpKind(
        "apply_deferred_update",
        reads=(*UPDATE_READS, "trainer.held"),
        writes=(*UPDATE_WRITES, "trainer.held"),
        device="trainer",
        blocking=False,
        binds="trainer.apply_deferred_update",
        cost="device",
        laws=("deferred-update",),
        doc="Waits for the step's last micro-batch, applies the update that was held back, and confirms it.",
        example='split(schedule, "update", law="deferred-update")',
    ),
    OpKind(
        "start_metrics",
        reads=("trainer.metrics",),
        writes=("trainer.metrics", "trainer.record[k]"),
        device="trainer",
        blocking=False,
        binds="trainer.start_metrics",
        cost="device",
        laws=("start-fetch",),
        doc="Sets the metrics of the step aside on the device and empties the buffer.",
        example='split(schedule, "get_metrics", law="start-fetch")',
    ),
    OpKind(
        "fetch_metrics",
        results=(Given("metrics", "metrics"),),
        writes=("metrics[k]",),
        awaits=("trainer.record[k]",),
        binds="trainer.fetch_metrics",
        cost="transfer",
        laws=("start-fetch",),
        doc="Waits for the metrics that were set aside and brings them to the host.",
        example='split(schedule, "get_metrics", law="start-fetch")',
    ),
    OpKind(
        "snapshot_checkpoint",
        reads=("params", "grads", "optimizer", "trainer.step", "rollout.weights"),
        writes=("trainer.copies.save[k]", "trainer.calls"),
        awaits=("params",),
        device="trainer",
        binds="trainer.snapshot_checkpoint",
        cost="transfer",
        laws=("snapshot-write",),
        doc="Copies all that a checkpoint holds.",
        example='split(schedule, "save_checkpoint", law="snapshot-write")',
    ),
    OpKind(
        "write_checkpoint",
        reads=("trainer.copies.save[k]",),
        writes=("checkpoints",),
        binds="trainer.write_checkpoint",
        cost="disk",
        laws=("snapshot-write",),
        doc="Writes a copied checkpoint to the store.",
        example='split(schedule, "save_checkpoint", law="snapshot-write")',
    ),
    OpKind(
        "copy_weights",
        results=(Given("version", "version"),),
        reads=("params", "trainer.step"),
        writes=("trainer.copies.sync[k]", "policy.version[k]", "trainer.calls"),
        device="trainer",
        blocking=False,
        binds="trainer.copy_weights",
        cost="device",
        laws=("copy-transfer-apply",),
        doc="Copies the parameters, so that later updates do not touch what is transferred.",
        example='split(schedule, "sync_weights", law="copy-transfer-apply")',
    ),
    OpKind(
        "transfer_weights",
        reads=("sync.round",),
        writes=("rollout.arrived[k]", "sync.round"),
        awaits=("trainer.copies.sync[k]",),
        binds="rollout.transfer_weights",
        cost="transfer",
        laws=("copy-transfer-apply",),
        doc="Sends a copy of the parameters to the rollout.",
        example='split(schedule, "sync_weights", law="copy-transfer-apply")',
    ),
    OpKind(
        "apply_weights",
        reads=("rollout.arrived[k]", "sync.round"),
        writes=("rollout.weights[k]", "sync.round"),
        binds="rollout.apply_weights",
        cost="transfer",
        laws=("copy-transfer-apply",),
        doc="Makes the weights that arrived those that the rollout generates with, under their version.",
        example='split(schedule, "sync_weights", law="copy-transfer-apply")',
    ),
)
"""The rows, each beside the law that makes it."""
