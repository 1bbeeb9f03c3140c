"""The motion ``guard``: an op runs early if what it needs is there by then, else in its place."""

from __future__ import annotations

from steptrace.check.laws import apply_law
from steptrace.diag.motion import GuardError
from steptrace.diag.schedule import LawError, UnknownLawError
from steptrace.motion.proof import Call, in_words, rewritten
from steptrace.motion.schedule import Moved, Schedule
from steptrace.motion.split import parts_of


def guard(schedule: Schedule, op: str) -> Moved:
    """Makes two arms of the training call on a peeled micro-batch, one of which may be moved ahead.

    ``a(%x)  -->  %packed = poll_packed(%x); a.early(%x) when %packed; a(%x) when not %packed``

    The poll waits for nothing: its flag says whether the operand is there by then. Wherever the poll and the early arm
    are moved, exactly one arm runs, so waiting for data never holds up what stands behind them.

    Refused when the op is no training call outside its loop, or is a part already.

    Args:
      schedule: the schedule.
      op: id of the call.

    Raises:
      GuardError: as above.
      UnknownOpError: there is no such op.
    """
    try:
        program, reference = apply_law(schedule.program, op, "poll"), apply_law(schedule.reference, op, "poll")
    except (LawError, UnknownLawError) as error:
        known = isinstance(error, LawError)
        message = f"no condition can be put on `{op}`: {error.message if known else 'it is no training call'}"
        raise GuardError(message, loc=error.loc, help=error.help if known else "") from error
    became = parts_of(schedule.program, program, op)
    claim = f"made {in_words(became)} of `{op}`: it may run early if its micro-batch is packed by then"
    return rewritten(schedule, program, reference, Call("guard", (op,)), claim, forwarding={op: became}, at=op)
