"""Parts with a state of their own, against the ops that a schedule runs ahead."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeGuard

from steptrace.diag.running import StateAheadError
from steptrace.diag.sanitize import UnsavedResourcesError
from steptrace.lang.parts import Checkpointable
from steptrace.lower import Plan
from steptrace.run.binding import Parts
from steptrace.run.resources import keeps_values

_CALLED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "dispatch": ("rollout", "prompts"),
        "reward": ("reward",),
        "advantages": ("advantages",),
        "stream_mb": ("reward", "advantages"),
        "ref_logps": ("reference",),
    }
)
"""The parts that an op calls, among those that may have a state beside the trainer."""


def check_states(plan: Plan, parts: Parts) -> None:
    """Refuse a part whose state a checkpoint would hold as a later step has left it.

    Raises:
      StateAheadError: points at the op that calls it.
      UnsavedResourcesError: points at an op that keeps values in a resource.
    """
    if "trainer.save_checkpoint" not in plan.verbs():
        return
    _check_kept(parts)
    loops = {call.op.id for lane in plan.lanes for node in lane.nodes for call in getattr(node, "calls", ())}
    for call in plan.calls():
        if not call.op.shift or call.op.id in loops:
            continue
        for role in _CALLED.get(call.kind.name, ()):
            if has_state(getattr(parts, role)):
                raise StateAheadError(
                    f"`{role}` has a state that checkpoints hold, and `{call.op.id}` calls it {call.op.shift} step "
                    "ahead of them",
                    loc=call.op.loc,
                    help="make it a function of what it is given, or run the program without taking ahead",
                )


def _check_kept(parts: Parts) -> None:
    """Refuse ops that keep values where no checkpoint looks."""
    kept = keeps_values(own.kind for own in parts.ops.values() if "resources" in own.context)
    if kept is not None:
        raise UnsavedResourcesError(
            f"`{kept.name}` writes resources of its own, which a checkpoint does not hold",
            loc=kept.loc,
            help="carry numbers with step.carry, keep the state in a part with save_checkpoint, or run without `out`",
        )


def has_state(part: Any) -> TypeGuard[Checkpointable]:
    """Whether a part has a state of its own that belongs in a checkpoint: both methods, its own or handed on.

    ``isinstance`` with the protocol does not see what a wrapper hands on through ``__getattr__``, from Python 3.12 on.
    """
    return all(callable(getattr(part, name, None)) for name in ("save_checkpoint", "restore_checkpoint"))
