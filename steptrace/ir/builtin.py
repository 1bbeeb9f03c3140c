"""The built-in rows of the op table and the built-in resources: the ops of an RL train step."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from steptrace.ir.kind import REQUIRED, Attr, Given, Operand, OpKind, Variant
from steptrace.ir.program import Program
from steptrace.ir.resource import Resource, ResourceKind
from steptrace.ir.schedule_ops import (
    CLOSES,
    CLOSING,
    HEAD,
    LENDING,
    LENT,
    SCHEDULE_RESOURCES,
    SCHEDULE_ROWS,
    UPDATE_READS,
    UPDATE_WRITES,
)

GROUP_ESTIMATORS = ("grpo", "dr_grpo", "rloo")
"""Advantage estimators that look at one group only, so that groups can be trained on as they arrive."""

STEP_ESTIMATORS = ("reinforce_pp",)
"""Advantage estimators that look at all groups of the step."""

ESTIMATORS = (*GROUP_ESTIMATORS, *STEP_ESTIMATORS)

_STATE, _CELL, _CHANNEL = ResourceKind.STATE, ResourceKind.CELL, ResourceKind.CHANNEL

RESOURCES: Mapping[str, Resource] = MappingProxyType(
    {
        resource.name: resource
        for resource in (
            Resource("rng", _STATE, doc="the seed; keys are functions of (seed, op, step, micro-batch)"),
            Resource("prompts.cursor", _STATE, doc="position in the prompt source"),
            Resource("rollout.weights", _CELL, doc="weights that step k published to the rollout, with their version"),
            Resource(
                "policy.version", _CELL, doc="version of the policy after the step, as the queue and the log see it"
            ),
            Resource("queue.groups", ResourceKind.FIFO, doc="finished groups, in the order they were dispatched"),
            Resource("queue.serving", _STATE, doc="serving cursor: the next batch to be taken"),
            Resource("queue.taken", _CELL, doc="which groups the step took: what its commit marks as trained"),
            Resource("queue.training", _STATE, doc="training cursor: the first uncommitted batch"),
            Resource("queue.committed", _CELL, doc="that the step is committed: what opens the dispatch window"),
            Resource("host", _CELL, doc="host memory of the step: its groups and micro-batches"),
            Resource("packer", _STATE, doc="sequences not yet packed into a full micro-batch"),
            Resource("reference.params", _STATE, doc="parameters of the frozen reference"),
            Resource("params", _STATE, doc="parameters of the actor"),
            Resource("grads", _STATE, doc="gradient accumulator: un-normalised sums and their count"),
            Resource("grads.sums", _STATE, doc="the un-normalised gradient sums of the accumulator"),
            Resource("grads.count", _STATE, doc="of how much those are the sums: the one denominator of the gradient"),
            Resource("optimizer", _STATE, doc="optimizer state, schedule count included"),
            Resource("trainer.step", _STATE, doc="how many updates were applied: the version of the parameters"),
            Resource("trainer.metrics", _STATE, doc="metrics not yet fetched; each record carries its step"),
            Resource("trainer.calls", _CHANNEL, doc="the calls that the trainer gets, in order"),
            Resource("metrics", _CELL, doc="metrics of the step, on the host"),
            Resource("checkpoints", _CHANNEL, doc="the checkpoint store"),
            Resource("log", _CHANNEL, doc="where step metrics go"),
            Resource("callbacks", _CHANNEL, doc="users' callbacks, called in step order"),
            *SCHEDULE_RESOURCES,
        )
    }
)
"""The resources of the built-in rows, by name."""

_GROUPS = Operand("groups", "groups")
_MB = Operand("micro-batch", "micro_batch")
_MADE_FROM_GROUPS = Given("mb", "micro_batch", adds=("advantages", "rewards"))
_DECLARED = (
    Attr("reads", tuple, doc="resources that the callback reads"),
    Attr("writes", tuple, doc="resources that the callback writes"),
)
_ESTIMATOR = Attr("estimator", str, "grpo", ESTIMATORS, doc="how rewards become advantages")

_ROWS = (
    OpKind(
        "on_step_begin",
        attrs=_DECLARED,
        declares=True,
        writes=("callbacks",),
        binds="callbacks.on_step_begin",
        doc="Calls users' `on_step_begin`; without declared effects it is a full barrier.",
        example='step.on_step_begin(reads=["metrics"])',
    ),
    OpKind(
        "dispatch",
        attrs=(
            Attr("prompts", int, REQUIRED, doc="prompts drawn for the step", least=1),
            Attr("samples", int, REQUIRED, doc="completions sampled for each prompt: the size of a group", least=1),
            Attr("extra", int, doc="prompts drawn beyond those trained: the first that come back whole are", least=1),
            Attr("keep", str, choices=("varied",), doc="draw on until so many groups have rewards that differ"),
            Attr(
                "most",
                int,
                doc="with `keep`: the most prompts drawn for a step, 10 times `prompts` unless given",
                least=1,
            ),
            Attr("window", bool, doc="wait for the commit of step k-1-w, and sample while no weights are published"),
            Attr("stagger", bool, doc="sample the second batch of a run once its first step is committed"),
        ),
        variants=(Variant("window", True, ("queue.committed[k-1-w]",)),),
        reads=("prompts.cursor", "rng", "rollout.weights[k-1-w]"),
        writes=("prompts.cursor", "queue.groups"),
        device="rollout",
        blocking=False,
        binds="rollout.generate",
        cost="device",
        doc="Draws the step's prompts and generates their completions with the pinned weights.",
        example="step.dispatch(prompts=32, samples=8)",
    ),
    OpKind(
        "take",
        results=(Given("groups", "groups"), Given("exists", "flag")),
        reads=("queue.groups", "queue.serving"),
        writes=("queue.groups", "queue.serving", "queue.taken[k]", "host[k]"),
        cost="wait",
        doc="Waits for the step's groups and takes them; `exists` is false once the data has ended.",
        example="groups = step.take()",
    ),
    OpKind(
        "reward",
        operands=(_GROUPS,),
        results=(Given("scored", "groups", like="groups", adds=("rewards",)),),
        reads=("host[k]",),
        binds="reward",
        doc="Scores each completion with the bound reward.",
        example="groups = step.reward(groups)",
    ),
    OpKind(
        "advantages",
        operands=(Operand("groups", "groups", ("rewards",)),),
        results=(Given("advantaged", "groups", like="groups", adds=("advantages",)),),
        attrs=(_ESTIMATOR,),
        reads=("host[k]",),
        may_fail=False,
        doc="Turns rewards into advantages.",
        example='groups = step.advantages(groups, estimator="grpo")',
    ),
    OpKind(
        "next_part",
        operands=(_GROUPS,),
        results=(Given("part", "groups", like="groups"),),
        reads=("host[k]",),
        may_fail=False,
        cost="none",
        doc="The next part of the step's groups: a mini-batch, with an update of its own.",
        example="for part in step.mini_batches(groups, 4):",
    ),
    OpKind(
        "pack",
        operands=(Operand("groups", "groups", ("advantages",)),),
        results=(Given("batch", "batch", like="groups"),),
        reads=("packer", "host[k]"),
        writes=("packer", "host[k]"),
        doc="Packs the step's sequences into micro-batches of fixed shape.",
        example="batch = step.pack(groups)",
    ),
    OpKind(
        "next_mb",
        operands=(Operand("batch", "batch"),),
        results=(Given("mb", "micro_batch", like="batch"), Given("last", "flag")),
        attrs=(LENT,),
        variants=LENDING,
        reads=("host[k]",),
        may_fail=False,
        cost="none",
        laws=("stream", "release"),
        doc="The next micro-batch of a packed step; `last` is true for the last one.",
        example="for mb in step.micro_batches(batch):",
    ),
    OpKind(
        "stream_mb",
        results=(_MADE_FROM_GROUPS, Given("last", "flag"), Given("exists", "flag")),
        attrs=(_ESTIMATOR, LENT),
        variants=LENDING,
        reads=("queue.groups", "queue.serving", "packer"),
        writes=("queue.groups", "queue.serving", "queue.taken[k]", "packer", "host[k]"),
        binds="reward",
        cost="wait",
        laws=("stream", "release"),
        doc="Takes, scores and packs groups as they arrive until one micro-batch comes out or the step closes.",
        example="for mb in step.micro_batches(step.stream()):",
    ),
    OpKind(
        "ref_logps",
        operands=(_MB,),
        results=(Given("mb", "micro_batch", like="micro-batch", adds=("ref_logps",)),),
        attrs=HEAD,
        reads=("reference.params",),
        device="reference",
        blocking=False,
        binds="reference.logps",
        cost="device",
        laws=("logps-head",),
        doc="Log-probs of the micro-batch's tokens under the frozen reference.",
        example="mb = step.ref_logps(mb)",
    ),
    OpKind(
        "old_logps",
        operands=(_MB,),
        results=(Given("mb", "micro_batch", like="micro-batch", adds=("old_logps",)),),
        attrs=HEAD,
        reads=("params",),
        writes=("trainer.calls",),
        device="trainer",
        blocking=False,
        binds="trainer.old_logps",
        cost="device",
        laws=("logps-head",),
        doc="Log-probs of the micro-batch's tokens under the actor as it is now.",
        example="mb = step.old_logps(mb)",
    ),
    OpKind(
        "fwd_bwd",
        operands=(Operand("micro-batch", "micro_batch", ("advantages",)),),
        attrs=(*HEAD, CLOSES),
        variants=CLOSING,
        reads=("params", "grads"),
        writes=("grads", "trainer.metrics", "trainer.calls"),
        device="trainer",
        blocking=False,
        binds="trainer.fwd_bwd",
        cost="device",
        laws=("fused-update", "stage", "poll", "settle", "logps-head"),
        doc="Forward and backward of one micro-batch; adds its gradient sums to the accumulator.",
        example="step.fwd_bwd(mb)",
    ),
    OpKind(
        "update",
        reads=UPDATE_READS,
        writes=UPDATE_WRITES,
        device="trainer",
        blocking=False,
        binds="trainer.update",
        cost="device",
        laws=("fused-update",),
        doc="Applies the accumulated gradient once and clears the accumulator.",
        example="step.update()",
    ),
    OpKind(
        "get_metrics",
        results=(Given("metrics", "metrics"),),
        reads=("trainer.metrics",),
        writes=("trainer.metrics", "metrics[k]", "trainer.calls"),
        awaits=("params",),
        device="trainer",
        binds="trainer.get_metrics",
        cost="transfer",
        laws=("start-fetch",),
        doc="Fetches the metrics of the step once its update is confirmed, and empties the buffer.",
        example="metrics = step.get_metrics()",
    ),
    OpKind(
        "save_checkpoint",
        reads=("params", "grads", "optimizer", "trainer.step", "rollout.weights"),
        writes=("checkpoints", "trainer.calls"),
        awaits=("params",),
        device="trainer",
        binds="trainer.save_checkpoint",
        cost="disk",
        laws=("snapshot-write",),
        doc="Saves all that a resumed run needs: trainer, published weights, cursors, versions.",
        example="with step.every(10): step.save_checkpoint()",
    ),
    OpKind(
        "sync_weights",
        results=(Given("version", "version"),),
        reads=("params", "trainer.step"),
        writes=("rollout.weights[k]", "policy.version[k]", "trainer.calls"),
        awaits=("params",),
        device="trainer",
        binds="rollout.apply_weights",
        cost="transfer",
        laws=("copy-transfer-apply",),
        doc="Publishes a copy of the parameters to the rollout, under their version.",
        example="step.sync_weights()",
    ),
    OpKind(
        "commit",
        attrs=(Attr("window", bool, doc="whether it opens the window that a dispatch waits for"),),
        variants=(Variant("window", True, (), ("queue.committed[k]",)),),
        reads=("queue.taken[k]", "queue.training", "policy.version[k]"),
        writes=("queue.training",),
        may_fail=False,
        cost="none",
        doc="Marks the step's groups as trained: moves the training cursor past them.",
        example="step.commit()",
    ),
    OpKind(
        "log",
        operands=(Operand("metrics", "metrics"),),
        reads=("metrics[k]", "host[k]", "policy.version[k]", "queue.training"),
        writes=("log",),
        binds="tracker.log",
        doc="Writes the step's metrics to the trackers, under the step they belong to.",
        example="step.log(metrics)",
    ),
    OpKind(
        "on_step_end",
        attrs=_DECLARED,
        declares=True,
        writes=("callbacks",),
        binds="callbacks.on_step_end",
        doc="Calls users' `on_step_end`; without declared effects it is a full barrier.",
        example='step.on_step_end(reads=["metrics"])',
    ),
    OpKind(
        "free",
        writes=("host[k]",),
        may_fail=False,
        cost="none",
        doc="Releases the host memory of the step.",
        example="step.free()",
    ),
)

BUILTIN: Mapping[str, OpKind] = MappingProxyType({row.name: row for row in (*_ROWS, *SCHEDULE_ROWS)})
"""The built-in rows by name: those of a step in its order, then those that laws make."""


def kinds_of(program: Program) -> dict[str, OpKind]:
    """The rows a program may use: the built-in table and its users' rows."""
    return {**BUILTIN, **{kind.name: kind for kind in program.kinds}}
