"""Targets: what a program can be lowered to, and which capabilities each reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType

from steptrace.diag.binding import UnknownTargetError
from steptrace.ir.schedule_ops import SCHEDULE_ROWS


@dataclass(frozen=True, slots=True)
class Target:
    """A place to run.

    Attributes:
      name: its name.
      rules: the built-in kinds of ops that it can run.
      scheduled: the kinds beside them that stand in schedules only.
      capabilities: what rules and `has(...)` conditions may rely on.
      doc: one sentence.
    """

    name: str
    rules: frozenset[str] = frozenset()
    scheduled: frozenset[str] = frozenset()
    capabilities: frozenset[str] = frozenset()
    doc: str = ""


PLAIN_OPS = frozenset(
    {
        "on_step_begin",
        "dispatch",
        "take",
        "reward",
        "advantages",
        "pack",
        "next_mb",
        "stream_mb",
        "next_part",
        "ref_logps",
        "old_logps",
        "fwd_bwd",
        "update",
        "get_metrics",
        "save_checkpoint",
        "sync_weights",
        "commit",
        "log",
        "on_step_end",
        "free",
    }
)
"""The kinds that stand in a step as its author writes it, as against the parts that laws split them into."""

SCHEDULE_OPS = frozenset(row.name for row in SCHEDULE_ROWS)
"""The kinds that laws split ops into."""

LENDS_BUFFERS = "lends_buffers"
"""The capability of a target, or a part, that reads micro-batches where they lie until they are given back."""

OWN_PROCESSES = "own_processes"
"""The capability of a target whose trainer, rollout and reference live in processes of their own."""

TARGETS: Mapping[str, Target] = MappingProxyType(
    {
        "inline": Target(
            "inline",
            rules=PLAIN_OPS,
            scheduled=SCHEDULE_OPS,
            doc="Jitted leaves in this process, dispatched asynchronously; a thread for each lane but the caller's.",
        ),
        "process": Target(
            "process",
            rules=PLAIN_OPS,
            scheduled=SCHEDULE_OPS,
            capabilities=frozenset({OWN_PROCESSES, LENDS_BUFFERS}),
            doc="Trainer, rollout and reference each in a process of its own; all else in this one, as inline.",
        ),
    }
)
"""The targets by name."""


def target_named(name: str) -> Target:
    """The target of that name; raises `UnknownTargetError`."""
    if name in TARGETS:
        return TARGETS[name]
    near = get_close_matches(name, TARGETS)
    raise UnknownTargetError(
        f"there is no target `{name}`",
        help=f"did you mean `{near[0]}`?" if near else f"the targets are {', '.join(f'`{t}`' for t in TARGETS)}",
    )
