"""The pass ``send-ahead``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from steptrace.check.legal import legal_places
from steptrace.ir.builtin import kinds_of
from steptrace.ir.program import Op, Program
from steptrace.ir.verify.runs import Role
from steptrace.motion import Schedule, guard, rotate
from steptrace.passes.base import declined
from steptrace.passes.roles import first_calls, with_role
from steptrace.passes.staging import check_packed_ahead


@dataclass(frozen=True)
class SendAhead:
    """Sends the training call on the next step's first micro-batch before this step's bookkeeping.

    Hides metrics, logging, callbacks and the release of host memory behind that micro-batch's computation: the call
    is sent as soon as the save, the weight sync and the commit are, and they run while the device computes.

    Holds nothing beyond the micro-batch in the trainer.

    Sends ahead only what is there by then, so that waiting for data holds up no boundary: the micro-batch that was
    shipped (`stage-before-update`, `stage-after-update`); where none was, because it was not packed in time, was lost
    on the way, or staging is off or not known to the trainer, the one that a poll finds packed by now. The whole call
    keeps its place in the next step for when there was none.

    Declines when the first micro-batch is not packed ahead (`take-ahead` comes first), when the call would do the
    update of a step with one micro-batch (`fuse-update`), or when nothing would be left to run behind it.
    """

    name: ClassVar[str] = "send-ahead"

    def run(self, schedule: Schedule) -> Schedule:
        """See the class."""
        shipped = _shipped(schedule.program)
        call = shipped or check_packed_ahead(schedule)
        _check(call)
        above = _above(schedule, call)
        done = guard(schedule, _whole(schedule.program).id if shipped else call.id)
        poll, early, _ = next(iter(done.forwarding.values()))
        return rotate(done.schedule, (call.id, poll, early) if shipped else (poll, early), above=above).schedule


def _whole(program: Program) -> Op:
    """The training call on a first micro-batch that was not shipped."""
    return next(op for op in first_calls(program) if not _takes_token(program, op))


def _takes_token(program: Program, op: Op) -> bool:
    """Whether a call carries no data: its operand is a token of what the trainer holds."""
    return any(spec.base == "token" for spec in kinds_of(program)[op.kind].operands)


def _shipped(program: Program) -> Op | None:
    """The training call on what was shipped ahead, if there is one."""
    return next((op for op in first_calls(program) if _takes_token(program, op)), None)


def _check(call: Op) -> None:
    if call.attr("closes") == "update":
        message = f"`{call.id}` also does the update in a step of one micro-batch, which must not come before"
        raise declined(f"{message} what ends the step before it", loc=call.loc, help="leave `fuse-update` out")
    if call.shift:
        raise declined(f"`{call.id}` is sent ahead already", loc=call.loc)


def _above(schedule: Schedule, call: Op) -> str:
    """What the call goes in front of: the first op that may follow it and stands behind the commit."""
    body = [node.id for node in schedule.program.body]
    room = legal_places(schedule.program, schedule.reference, call.id, shift=1)
    behind = [op.id for op in with_role(schedule.program, Role.COMMIT)] + [room.after] * bool(room.after)
    last = max((body.index(id) for id in behind if id in body), default=-1)
    rest = [id for id in body[last + 1 :] if id != call.id]
    if not room.possible or not rest:
        raise declined(f"nothing could run behind `{call.id}` of the next step", loc=call.loc, edge=room.low)
    return rest[0]
