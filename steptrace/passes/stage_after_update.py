"""The pass ``stage-after-update``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from steptrace.ir.verify.runs import Role
from steptrace.motion import Schedule
from steptrace.passes.base import declined
from steptrace.passes.roles import feeding, training_loop, used_by, with_role
from steptrace.passes.staging import check_packed_ahead, staged


@dataclass(frozen=True)
class StageAfterUpdate:
    """Ships the first micro-batch of the next step right after this step's update was sent.

    Hides the transfer of that micro-batch behind the update, on trainers that cannot hold an update back. Where the
    last training call does the update (`fuse-update`), the shipping stands right after it. The later call that
    trains the micro-batch carries no data; where nothing was packed in time, the whole call runs in its place
    instead.

    Holds one micro-batch in the trainer's memory.

    Declines when the first micro-batch is not packed ahead (`take-ahead` comes first), or was shipped already.
    """

    name: ClassVar[str] = "stage-after-update"

    def run(self, schedule: Schedule) -> Schedule:
        """See the class."""
        call = check_packed_ahead(schedule)
        body = schedule.program.body
        updates = [op.id for op in with_role(schedule.program, Role.APPLY) if op in body and op.micro is None]
        last = updates[-1] if updates else training_loop(schedule.program).id
        makers = [op.id for op in feeding(body, used_by((call,)))]
        at = max(place for place, node in enumerate(body) if node.id in (last, *makers)) + 1
        if at == len(body):
            raise declined(f"nothing stands after `{last}` that the shipping could go ahead of", loc=call.loc)
        return staged(schedule, call, above=body[at].id)
