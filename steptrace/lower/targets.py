"""Targets: what a program can be lowered to, and which capabilities each reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType

from steptrace.diag.binding import UnknownTargetError


@dataclass(frozen=True, slots=True)
class Target:
    """A place to run.

    Attributes:
      name: its name.
      capabilities: what rules and `has(...)` conditions may rely on.
      doc: one sentence.
    """

    name: str
    capabilities: frozenset[str] = frozenset()
    doc: str = ""


TARGETS: Mapping[str, Target] = MappingProxyType(
    {
        "inline": Target(
            "inline",
            doc="Jitted leaves in this process, dispatched asynchronously, in program order on the caller's thread.",
        )
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
