"""The pass ``stage-before-update``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from steptrace.motion import Schedule, split
from steptrace.passes.roles import splittable
from steptrace.passes.staging import check_packed_ahead, staged


@dataclass(frozen=True)
class StageBeforeUpdate:
    """Ships the first micro-batch of the next step while the last one of this step trains, before the update.

    Hides the transfer of that micro-batch behind the step's last training call also where the update waits on the host
    for it (dropless replay reads its overflow flag): the last call holds the update back (law `deferred-update`), the
    shipping comes next, then `apply_deferred_update`. The later call that trains the micro-batch carries no data; where
    nothing was packed in time, or the shipping failed on the way, the whole call runs in its place instead.

    Holds one micro-batch in the trainer's memory.

    Declines when the first micro-batch is not packed ahead (`take-ahead` comes first), when it was shipped already, or
    when the update cannot be held back: there are several, or one under a condition.
    """

    name: ClassVar[str] = "stage-before-update"

    def run(self, schedule: Schedule) -> Schedule:
        """See the class."""
        call = check_packed_ahead(schedule)
        update = splittable(schedule.program, "fused-update").id
        held = split(schedule, update, law="deferred-update")
        return staged(held.schedule, call, above=held.forwarding[update][0])
