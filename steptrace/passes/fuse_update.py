"""The pass ``fuse-update``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from steptrace.motion import Schedule, fuse
from steptrace.passes.roles import splittable


@dataclass(frozen=True)
class FuseUpdate:
    """Lets the last training call of a step do the update too.

    Saves one call to the trainer for each step, and lets the compiler overlap the last backward with the update. The
    trainer compiles another program, so results agree within rounding only.

    Holds nothing more in memory.

    Declines when the update is not the one thing that follows the loop of training calls: another op in between touches
    what it touches, there are several updates, or one under a condition.
    """

    name: ClassVar[str] = "fuse-update"

    def run(self, schedule: Schedule) -> Schedule:
        """See the class."""
        return fuse(schedule, splittable(schedule.program, "fused-update").id, law="fused-update").schedule
