"""The pass ``async-weight-sync``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from steptrace.motion import Schedule, move_to_lane, rename, split
from steptrace.passes.roles import splittable


@dataclass(frozen=True)
class AsyncWeightSync:
    """Transfers weights to the rollout while the next step trains.

    Hides the transfer behind the next step: `sync_weights` becomes a copy, which the next update does not touch,
    and its transfer and application, which the lane ``rollout`` issues. The commit and the log follow the copy,
    which has the version; a dispatch waits for the application of the version that it samples with. One round is in
    flight at a time, and the run ends after the last.

    Holds one copy of the parameters in the trainer's memory, and one at the rollout while it arrives: the next copy
    waits until this one is transferred.

    Declines when the step does not publish its weights by one `sync_weights` directly in it.
    """

    name: ClassVar[str] = "async-weight-sync"

    def run(self, schedule: Schedule) -> Schedule:
        """See the class."""
        sync = splittable(schedule.program, "copy-transfer-apply").id
        done = split(schedule, sync, law="copy-transfer-apply")
        moved = move_to_lane(done.schedule, done.forwarding[sync][1:], lane="rollout").schedule
        for copy in ("trainer.copies.sync", "rollout.arrived"):
            moved = rename(moved, copy, capacity=1).schedule
        return moved
