"""The pass ``fuse-update``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from steptrace.motion import Schedule, fuse
from steptrace.passes.base import declined
from steptrace.passes.roles import first_calls, splittable


@dataclass(frozen=True)
class FuseUpdate:
    """Lets the last training call of a step do the update too.

    Saves one call to the trainer for each step, and lets the compiler overlap the last backward with the update. The
    trainer compiles another program, so results agree within rounding only.

    Holds nothing more in memory.

    Declines when the update is not the one thing that follows the loop of training calls: another op in between touches
    what it touches, there are several updates, or one under a condition. Also when the first call of the next step is
    sent ahead already (`send-ahead`), since in a step of one micro-batch that call would do the update.
    """

    name: ClassVar[str] = "fuse-update"

    def run(self, schedule: Schedule) -> Schedule:
        """See the class."""
        ahead = [op for op in first_calls(schedule.program) if op.shift]
        if ahead:
            message = f"`{ahead[0].id}` is sent ahead, and would do the update of a step with one micro-batch before"
            raise declined(f"{message} what ends the step before it", loc=ahead[0].loc)
        return fuse(schedule, splittable(schedule.program, "fused-update").id, law="fused-update").schedule
