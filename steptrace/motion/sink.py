"""The motion ``sink``: ops run later in their step."""

from __future__ import annotations

from collections.abc import Iterable

from steptrace.diag.motion import PlaceError
from steptrace.motion.edit import check_anchor, following, ids_of, node_of, place_of, regrouped
from steptrace.motion.proof import Call, in_words, moved, one_or_all
from steptrace.motion.schedule import Moved, Schedule


def sink(schedule: Schedule, ops: str | Iterable[str], *, below: str) -> Moved:
    """Moves ops down, to stand directly below another one.

    ``a; b; c  -->  b; c; a``   for ``sink(schedule, "a", below="c")``

    Refused when an op that ``a`` passes must come after it in the same turn of its lane. Ops that are moved together
    keep their order.

    Args:
      schedule: the schedule.
      ops: id of an op or loop, or several of one home, each above ``below``.
      below: id of an op or loop beside them.

    Raises:
      SteptraceError: the new order is not that of the source, or the arguments make no sense.
    """
    program = schedule.program
    ids = ids_of(ops)
    home = check_anchor(program, ids, below)
    for id in ids:
        if place_of(program, home, id) > place_of(program, home, below):
            raise PlaceError(f"`{id}` stands below `{below}` already", loc=node_of(program, id).loc, help="hoist it")
    call = Call("sink", (one_or_all(ids),), (("below", below),))
    target = following(program, home, ids, below)
    return moved(schedule, regrouped(program, home, ids, target), call, ids, f"moved {in_words(ids)} below `{below}`")
