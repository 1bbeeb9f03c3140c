"""The motion ``hoist``: ops run earlier in their step."""

from __future__ import annotations

from collections.abc import Iterable

from steptrace.diag.motion import PlaceError
from steptrace.motion.edit import check_anchor, ids_of, node_of, place_of, regrouped
from steptrace.motion.proof import Call, in_words, moved, one_or_all
from steptrace.motion.schedule import Moved, Schedule


def hoist(schedule: Schedule, ops: str | Iterable[str], *, above: str) -> Moved:
    """Moves ops up, to stand directly above another one.

    ``a; b; c  -->  c; a; b``   for ``hoist(schedule, "c", above="a")``

    Refused when an op that ``c`` passes must come before it in the same turn of its lane: it makes what ``c`` uses,
    writes what it reads, or the like. Ops that are moved together keep their order.

    Args:
      schedule: the schedule.
      ops: id of an op or loop, or several of one home, each below ``above``.
      above: id of an op or loop beside them.

    Raises:
      SteptraceError: the new order is not that of the source, or the arguments make no sense.
    """
    program = schedule.program
    ids = ids_of(ops)
    home = check_anchor(program, ids, above)
    for id in ids:
        if place_of(program, home, id) < place_of(program, home, above):
            raise PlaceError(f"`{id}` stands above `{above}` already", loc=node_of(program, id).loc, help="sink it")
    call = Call("hoist", (one_or_all(ids),), (("above", above),))
    return moved(schedule, regrouped(program, home, ids, above), call, ids, f"moved {in_words(ids)} above `{above}`")
