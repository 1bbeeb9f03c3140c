"""The motion ``rotate``: ops run whole steps (in a loop: micro-batches) ahead of their place."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from steptrace.diag.motion import MotionArgumentError, PlaceError
from steptrace.ir.program import Loop, Op, Program
from steptrace.motion.edit import changed, check_anchor, common_home, ids_of, node_of, regrouped
from steptrace.motion.proof import Call, in_words, moved, one_or_all
from steptrace.motion.schedule import Argument, Moved, Schedule


def rotate(schedule: Schedule, ops: str | Iterable[str], *, ahead: int = 1, above: str = "") -> Moved:
    """Lets ops run a number of turns ahead: steps, or micro-batches for ops in a loop over them.

    ``step k { a; b; c }  -->  step k { b; c; a shift=+1 }``   for ``rotate(schedule, "a")``

    At the end of the step, one step ahead, is where ops that began the step end up when steps are cut at another place;
    from there ``hoist`` moves them further up, past the rest of the step before. With ``above`` they go there at once.

    Refused when an op of the turns in between must come before one of them, or when an op that waits for data would
    hold up work of an earlier step on its lane.

    Args:
      schedule: the schedule.
      ops: id of an op, or several of one home. A loop has no shift.
      ahead: how many turns further ahead; negative to take some back.
      above: id of an op or loop beside them to stand above; at the end where it is left out.

    Raises:
      SteptraceError: the new order is not that of the source, or the arguments make no sense.
    """
    program = schedule.program
    ids = ids_of(ops)
    home = check_anchor(program, ids, above) if above else common_home(program, ids)
    _check(program, ids, ahead)
    shifted = changed(program, ids, lambda op: replace(op, shift=op.shift + ahead))
    placed = regrouped(shifted, home, ids, above or None)
    options: tuple[tuple[str, Argument], ...] = (("ahead", ahead), *((("above", above),) if above else ()))
    unit = ("micro-batch" if home else "step") + ("" if abs(ahead) == 1 else "es" if home else "s")
    claim = f"run {in_words(ids)} {ahead} {unit} ahead" + (f", above `{above}`" if above else "")
    return moved(schedule, placed, Call("rotate", (one_or_all(ids),), options), ids, claim)


def _check(program: Program, ids: tuple[str, ...], ahead: int) -> None:
    if ahead == 0:
        raise MotionArgumentError("a rotation by 0 moves nothing", loc=node_of(program, ids[0]).loc)
    for id in ids:
        node = node_of(program, id)
        if isinstance(node, Loop):
            message = f"loop `{id}` cannot run ahead of its step as a whole"
            raise PlaceError(message, loc=node.loc, help="peel its first micro-batch, and rotate that")
        assert isinstance(node, Op), "a node is a loop or an op"
