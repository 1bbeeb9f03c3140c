"""The pass ``replay``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from steptrace.check.laws import LAWS
from steptrace.diag.motion import PassOptionError
from steptrace.ir.program import Op
from steptrace.ir.verify.runs import Role
from steptrace.motion import Schedule, move_to_lane, rename, split
from steptrace.passes.base import declined
from steptrace.passes.roles import training_loop, with_role

_LAW = "settle"


@dataclass(frozen=True)
class Replay:
    """Settles training calls late: whether a call dropped tokens is looked at while later ones are computed.

    Hides the wait for the overflow flag, and the rerun of a micro-batch that had one set, behind the next ``late``
    calls: each call becomes an attempt, and a settling that the lane ``trainer`` does. The update waits for the
    settling of the last call; with ``stage-before-update`` the next micro-batch is shipped while it does.

    Holds the gradient sums and the micro-batches of ``1 + late`` calls: the call after those waits until the first is
    settled. Where the first micro-batch stands before the loop (``take-ahead``), the second call waits for it.

    Declines when the step trains inside a loop over epochs or mini-batches, and when its calls are shipped or sent
    ahead already, or do the update too: this pass comes first.
    """

    name: ClassVar[str] = "replay"
    late: int = 1

    def __post_init__(self) -> None:
        if self.late < 0:
            raise PassOptionError(f"`late` of `{self.name}` counts training calls, 0 or more, not {self.late}")

    def run(self, schedule: Schedule) -> Schedule:
        """See the class."""
        loop = training_loop(schedule.program)
        calls = tuple(op for op in with_role(schedule.program, Role.ACCUMULATE) if _can_settle(op))
        if not calls:
            others = ", ".join(f"`{op.id}`" for op in with_role(schedule.program, Role.ACCUMULATE))
            raise declined(f"{others} cannot be told apart from what settles it, or is settled already", loc=loop.loc)
        made: list[str] = []
        for call in calls:
            done = split(schedule, call.id, law=_LAW)
            schedule = done.schedule
            made.append(done.forwarding[call.id][-1])
        schedule = move_to_lane(schedule, made, lane="trainer").schedule
        return rename(schedule, "trainer.attempts", capacity=1 + self.late).schedule


def _can_settle(op: Op) -> bool:
    return LAWS[_LAW].takes(op.kind)
