"""The pass ``defer-update``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from steptrace.motion import Schedule, split
from steptrace.passes.roles import splittable


@dataclass(frozen=True)
class DeferUpdate:
    """Lets the last training call of a step hold its update back, and applies it by a call of its own.

    Hides nothing by itself: it makes room between the last micro-batch and its update, where `stage-before-update`
    (which does this too) ships the next micro-batch.

    Holds nothing more in memory.

    Declines when the update cannot be held back: there are several, or one under a condition.
    """

    name: ClassVar[str] = "defer-update"

    def run(self, schedule: Schedule) -> Schedule:
        """See the class."""
        return split(schedule, splittable(schedule.program, "fused-update").id, law="deferred-update").schedule
