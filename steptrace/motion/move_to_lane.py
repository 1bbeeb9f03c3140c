"""The motion ``move_to_lane``: another lane issues ops."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from steptrace.diag.motion import MotionArgumentError
from steptrace.ir.agree import lanes_of
from steptrace.ir.builtin import kinds_of
from steptrace.motion.edit import changed, home_of, ids_of
from steptrace.motion.proof import Call, in_words, moved, one_or_all
from steptrace.motion.schedule import Moved, Schedule


def move_to_lane(schedule: Schedule, ops: str | Iterable[str], *, lane: str) -> Moved:
    """Lets another lane issue ops. Lanes run side by side; where an edge joins them, the later one waits.

    ``a lane=host; b lane=host  -->  a lane=packer; b lane=host``   for ``move_to_lane(schedule, "a", lane="packer")``

    Refused when there is no such lane, when the lanes would wait for one another for ever, or when an op of a loop that
    is moved as a whole would be left behind.

    Args:
      schedule: the schedule.
      ops: id of an op or loop, or several; of a loop all ops are moved.
      lane: name of the lane, which need not have ops yet.

    Raises:
      SteptraceError: the lanes would hang, or the arguments make no sense.
    """
    ids = ids_of(ops)
    lanes = lanes_of(kinds_of(schedule.program))
    if lane not in lanes:
        raise MotionArgumentError(f"`{lane}` is no lane", help=f"the lanes are {', '.join(lanes)}")
    for id in ids:
        home_of(schedule.program, id)
    program = changed(schedule.program, ids, lambda op: replace(op, lane=lane))
    call = Call("move_to_lane", (one_or_all(ids),), (("lane", lane),))
    return moved(schedule, program, call, ids, f"lane `{lane}` issues {in_words(ids)}")
