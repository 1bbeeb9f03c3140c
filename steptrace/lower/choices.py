"""The choice table: how each op of a schedule is carried out, given what trainer and rollout can do.

For each kind the ways stand in order, each with the capabilities that it needs; the first that fits is taken. The last
one of a law's part is always the law applied back: it needs what the op that was split needs, and trains the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from steptrace.diag.binding import NotLowerableError
from steptrace.ir import Op
from steptrace.lower.plan import Call, Plan
from steptrace.lower.targets import LENDS_BUFFERS, OWN_PROCESSES


@dataclass(frozen=True, slots=True)
class Way:
    """One way to carry an op out.

    Attributes:
      name: its name.
      needs: capabilities: a verb of a part (``trainer.stage_fwd_bwd``), or a word that a part advertises.
      doc: what is done, in a few words.
    """

    name: str
    needs: tuple[str, ...]
    doc: str


_STAGE = ("trainer.stage_fwd_bwd", "trainer.fwd_bwd_staged", "trainer.wait_for_device")
"""A trainer that cannot wait for the device would meet a failed update in some later call, as that call's failure."""

_DEFER = ("trainer.apply_deferred_update", "stage_before_update")

_HEAD = "logps_head"
"""What a part advertises that was made with the sharded head; of a reference it is ``reference.logps_head``."""

BEHIND = "behind"
"""The way of a stage that a plan moves behind the update: see `steptrace.lower.fallbacks`."""

HELD_STAGE = "stage_fwd_bwd before=update"
"""The row of a stage in front of an update that is to be held back."""

WAYS: Mapping[str, tuple[Way, ...]] = MappingProxyType(
    {
        "fwd_bwd closes=defer": (
            Way("deferred", _DEFER, "the last call holds the update back"),
            Way("plain", ("trainer.fwd_bwd",), "a plain call; the update comes where it is applied"),
        ),
        "fwd_bwd closes=update": (
            Way("fused", ("trainer.fwd_bwd", "fused_update"), "the last call also does the update"),
            Way("plain", ("trainer.fwd_bwd", "trainer.update"), "a plain call, and an update behind the last"),
        ),
        "apply_deferred_update": (
            Way("deferred", _DEFER, "the update that the last call holds back"),
            Way("update", ("trainer.update",), "a plain update"),
        ),
        "stage_fwd_bwd": (
            Way("stage", _STAGE, "ships the micro-batch if it is packed by then"),
            Way("never", (), "ships nothing, so the whole call is made in its place"),
        ),
        HELD_STAGE: (
            Way("stage", (*_DEFER, *_STAGE), "ships the micro-batch while the update is held back"),
            Way(BEHIND, _STAGE, "ships it right behind the update, which cannot be held back"),
            Way("never", (), "ships nothing, so the whole call is made in its place"),
        ),
        "fwd_bwd_staged": (
            Way("staged", _STAGE, "runs what was shipped"),
            Way("never", (), "nothing is ever shipped"),
        ),
        "attempt_fwd_bwd": (Way("plain", ("trainer.fwd_bwd",), "a plain call, which the trainer settles"),),
        "attempt_staged": (
            Way("staged", _STAGE, "runs what was shipped"),
            Way("never", (), "nothing is ever shipped"),
        ),
        "settle": (Way("in-trainer", (), "the trainer settles its calls itself, the last one in the update"),),
        "release": (
            Way("return", (LENDS_BUFFERS,), "waits for the calls that read the buffer, and gives it back"),
            Way("nothing", (), "the memory is the host's own, and goes with the micro-batch"),
        ),
        "start_metrics": (
            Way("set-aside", ("trainer.start_metrics", "trainer.fetch_metrics"), "sets the record aside on the device"),
            Way("get", ("trainer.get_metrics",), "fetches at once"),
        ),
        "fetch_metrics": (
            Way("fetch", ("trainer.start_metrics", "trainer.fetch_metrics"), "brings the record to the host"),
            Way("kept", ("trainer.get_metrics",), "gives what was fetched at the start"),
        ),
        "snapshot_checkpoint": (
            Way("copy", ("trainer.snapshot_checkpoint", "trainer.write_checkpoint"), "copies the trainer's state"),
            Way("save", ("trainer.save_checkpoint",), "writes the trainer's state at once"),
        ),
        "write_checkpoint": (
            Way("write", ("trainer.snapshot_checkpoint", "trainer.write_checkpoint"), "writes the copy"),
            Way("rest", ("trainer.save_checkpoint",), "writes what is not the trainer's"),
        ),
        "copy_weights": (
            Way("copy", ("trainer.copy_weights",), "a copy, under its version"),
            Way("weights", ("trainer.weights",), "the trainer's weights, which are a copy"),
        ),
        "transfer_weights": (
            Way("sent", (OWN_PROCESSES,), "brings the copy out of the trainer's process"),
            Way("in-memory", (), "the copy is in this process already"),
        ),
        "apply_weights": (Way("apply", (), "published to the rollout under its version"),),
        "poll_packed": (Way("look", (), "looks whether the micro-batch is there"),),
        **{
            f"{kind} head={head}": (
                Way("shard_map", (need,), "a chunk of tokens at a time, over all devices of the mesh"),
                Way("dense", (), "all logits of the micro-batch"),
            )
            for kind, need in (("fwd_bwd", _HEAD), ("old_logps", _HEAD), ("ref_logps", f"reference.{_HEAD}"))
            for head in ("shard_map", "auto")
        },
    }
)
"""The ways by kind of op, for training calls by how they close a step, and for log-probs by the head selected."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen for one op.

    Attributes:
      op: its id.
      rule: the row of `WAYS`; the kind itself for ops that have one way only.
      way: name of the way; ``"call"`` for those.
      passed_over: the ways before it, each with the capability that is missing.
    """

    op: str
    rule: str
    way: str
    passed_over: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        over = "".join(f"; not {name}: no `{lacking}`" for name, lacking in self.passed_over)
        return f"{self.op}: {self.way}{over}"


def choices(plan: Plan, capabilities: Iterable[str]) -> tuple[Choice, ...]:
    """How each op of a plan is carried out, in the plan's order.

    Args:
      plan: the plan.
      capabilities: of the target and of the bound parts: ``trainer.<verb>`` for each method that is there, and the
        words that parts advertise.

    Raises:
      NotLowerableError: no way fits; names the op, the last way and the capability.
    """
    there, held = frozenset(capabilities), _held_stages(plan)
    return tuple(_choice(call, HELD_STAGE if call.op.id in held else rule_of(call), there) for call in plan.calls())


def head_choices(plan: Plan, capabilities: Iterable[str]) -> tuple[Choice, ...]:
    """Which head makes the log-probs of each op that one was selected for, in the plan's order.

    A part has the head that it was made with: a plan does not change it, and says where it is not the one selected.

    Args:
      plan: the plan.
      capabilities: as `choices` takes them.
    """
    there = frozenset(capabilities)
    rules = ((call, _head_rule(call.op)) for call in plan.calls())
    return tuple(_choice(call, rule, there) for call, rule in rules if rule)


def head_remarks(found: Iterable[Choice]) -> tuple[str, ...]:
    """Where the head is not the one that was selected, a sentence for each reason."""
    lacking: dict[str, list[str]] = {}
    for choice in found:
        if choice.rule.endswith("head=shard_map") and choice.passed_over:
            lacking.setdefault(choice.passed_over[0][1], []).append(f"`{choice.op}`")
    return tuple(f"the head of {', '.join(ops)} stays dense: there is no `{need}`" for need, ops in lacking.items())


def _head_rule(op: Op) -> str:
    """The row of the table that an op's head is looked up in; "" where there is none."""
    rule = f"{_HEAD_OF.get(op.kind, op.kind)} head={op.attr('head')}"
    return rule if rule in WAYS else ""


_HEAD_OF = dict.fromkeys(("fwd_bwd_staged", "attempt_fwd_bwd", "attempt_staged"), "fwd_bwd")
"""The kinds whose head is that of another kind."""


def _held_stages(plan: Plan) -> frozenset[str]:
    """The stages that stand in front of an update that is to be held back."""
    kinds = [node.kind if isinstance(node, Op) else "" for node in plan.program.body]
    if "apply_deferred_update" not in kinds:
        return frozenset()
    ahead = plan.program.body[: kinds.index("apply_deferred_update")]
    return frozenset(node.id for node in ahead if isinstance(node, Op) and node.kind == "stage_fwd_bwd")


def _choice(call: Call, rule: str, there: frozenset[str]) -> Choice:
    if rule not in WAYS:
        return Choice(call.op.id, call.kind.name, "call")
    over: list[tuple[str, str]] = []
    for way in WAYS[rule]:
        lacking = next((need for need in way.needs if need not in there), "")
        if not lacking:
            return Choice(call.op.id, rule, way.name, tuple(over))
        over.append((way.name, lacking))
    name, lacking = over[-1]
    raise NotLowerableError(
        f"`{call.op.id}` can be carried out in no way: `{name}`, the last of `{rule}`, needs `{lacking}`",
        loc=call.op.loc,
    )


_WHOLE_CALLS = ("fwd_bwd", "attempt_fwd_bwd")
"""The kinds of training calls that carry their micro-batch."""


def rule_of(call: Call) -> str:
    """The row of the table that an op is looked up in."""
    closes = call.op.attr("closes") if call.kind.name in _WHOLE_CALLS else None
    return f"fwd_bwd closes={closes}" if closes else call.kind.name
