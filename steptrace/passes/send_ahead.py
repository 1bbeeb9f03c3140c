"""The pass ``send-ahead``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from steptrace.check.legal import legal_places
from steptrace.ir.builtin import kinds_of
from steptrace.ir.program import Op, Program
from steptrace.ir.verify.runs import Role
from steptrace.motion import Schedule, rotate
from steptrace.passes.base import declined
from steptrace.passes.roles import first_calls, with_role


@dataclass(frozen=True)
class SendAhead:
    """Sends the training call on the next step's first micro-batch before this step's bookkeeping.

    Hides metrics, logging, callbacks and the release of host memory behind that micro-batch's computation: the call is
    sent as soon as the save, the weight sync and the commit are, and they run while the device computes.

    Holds nothing beyond the micro-batch in the trainer.

    Sends ahead only what was shipped by then, so that waiting for data holds up no boundary: where a micro-batch was
    not packed in time, its whole call keeps its place in the next step.

    Declines when no first micro-batch is shipped ahead (`stage-before-update` or `stage-after-update` comes first), when
    the call would do the update of a step with one micro-batch (`fuse-update`), or when nothing would be left to run
    behind it.
    """

    name: ClassVar[str] = "send-ahead"

    def run(self, schedule: Schedule) -> Schedule:
        """See the class."""
        call = _call(schedule.program)
        ids = [node.id for node in schedule.program.body]
        room = legal_places(schedule.program, schedule.reference, call.id, shift=call.shift + 1)
        behind = [op.id for op in with_role(schedule.program, Role.COMMIT)]
        behind += [room.after] if room.after else []
        last = max((ids.index(id) for id in behind if id in ids), default=-1)
        rest = [id for id in ids[last + 1 :] if id != call.id]
        if not room.possible or not rest:
            raise declined(f"nothing could run behind `{call.id}` of the next step", loc=call.loc, edge=room.low)
        return rotate(schedule, call.id, above=rest[0]).schedule


def _call(program: Program) -> Op:
    """The training call that needs no data: its operand is a token of what the trainer holds."""
    kinds = kinds_of(program)
    calls = first_calls(program)
    shipped = [op for op in calls if any(spec.base == "token" for spec in kinds[op.kind].operands)]
    if not shipped:
        help = "put `stage-before-update` or `stage-after-update` before this pass"
        message = "no first micro-batch is shipped ahead, and a call that waits for data would hold up the boundary"
        raise declined(message, loc=calls[0].loc if calls else program.loc, help=help)
    if shipped[0].attr("closes") == "update":
        message = f"`{shipped[0].id}` also does the update in a step of one micro-batch, which must not come before"
        raise declined(f"{message} what ends the step before it", loc=shipped[0].loc, help="leave `fuse-update` out")
    if shipped[0].shift:
        raise declined(f"`{shipped[0].id}` is sent ahead already", loc=shipped[0].loc)
    return shipped[0]
