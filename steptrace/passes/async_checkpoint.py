"""The pass ``async-checkpoint``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from steptrace.motion import Schedule, move_to_lane, rename, split
from steptrace.passes.base import declined
from steptrace.passes.roles import splittable


@dataclass(frozen=True)
class AsyncCheckpoint:
    """Writes checkpoints while the next steps train.

    Hides the write to disk: `save_checkpoint` becomes a snapshot, which the next update does not touch, and its
    write, which the lane ``io`` issues.

    Holds one copy of the parameters and the optimizer state: the next snapshot waits until it is written.

    Declines unless the contract says ``saves=may_fail_late``: a write that fails late is noticed after the weights
    of that step were published and later steps trained, where the plain step would have stopped before.
    """

    name: ClassVar[str] = "async-checkpoint"

    def run(self, schedule: Schedule) -> Schedule:
        """See the class."""
        save = splittable(schedule.program, "snapshot-write")
        if schedule.program.contract.saves != "may_fail_late":
            message = f"`{save.id}` must be on disk before what follows it: the contract says saves=before_sync"
            help = f"declare it: `{schedule.program.name}{{saves=may_fail_late}}`"
            raise declined(message, loc=save.loc, help=help)
        done = split(schedule, save.id, law="snapshot-write")
        moved = move_to_lane(done.schedule, done.forwarding[save.id][1], lane="io").schedule
        return rename(moved, "trainer.copies.save", capacity=1).schedule
