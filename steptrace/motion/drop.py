"""The motion ``drop``: an op that nobody would miss is left out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from steptrace.check.dead import dead_ops, without
from steptrace.check.edge import EdgeKind
from steptrace.check.edges import edges_of
from steptrace.check.rewrite import find
from steptrace.diag.base import Note
from steptrace.diag.motion import LiveOpError
from steptrace.ir.program import Program, ops_of
from steptrace.motion.edit import ids_of
from steptrace.motion.proof import Call, in_words, one_or_all, rewritten
from steptrace.motion.schedule import Moved, Schedule


def drop(schedule: Schedule, ops: str | Iterable[str]) -> Moved:
    """Leaves out ops whose values nobody uses and whose writes nobody sees.

    ``a; b  -->  a``   for ``drop(schedule, "b")``

    The source loses them too: an op that is not seen equals nothing. A run in which the op would have failed goes on.
    An op of a loop is left out with what was peeled of it.

    Refused when something depends on one of them: a value is used, a resource is read, a channel or a built-in
    resource shows what it writes.

    Args:
      schedule: the schedule.
      ops: id of an op, or several that only feed one another.

    Raises:
      LiveOpError: as above.
      UnknownOpError: there is no such op.
    """
    ids = ids_of(ops)
    check_dead(schedule, ids)
    source, reference, program = (
        without(one, _standing_for(one, ids)) for one in (schedule.source, schedule.reference, schedule.program)
    )
    forwarding: dict[str, tuple[str, ...]] = dict.fromkeys(_standing_for(schedule.program, ids), ())
    claim = f"left out {in_words(ids)}, which nobody would miss"
    call = Call("drop", (one_or_all(ids),))
    return rewritten(
        schedule, program, reference, call, claim, how="no edge", source=source, forwarding=forwarding, at=ids[0]
    )


def _standing_for(program: Program, ids: tuple[str, ...]) -> tuple[str, ...]:
    """The ops that stand for some ops of the source: what was peeled of a loop does so too."""
    return tuple(
        op.id for op in ops_of(program.body) if op.id in ids or (op.origin is not None and op.origin.op in ids)
    )


def check_dead(schedule: Schedule, ids: tuple[str, ...]) -> None:
    """Refuses ops of the source that are seen.

    Raises:
      LiveOpError: one of them is seen, or is no op of the source.
    """
    dead = dead_ops(schedule.source)
    for id in ids:
        op = find(schedule.program, id)
        if id not in dead:
            notes = tuple(_seen_by(schedule, id, ids))
            raise LiveOpError(f"`{id}` cannot be left out: what it makes or writes is seen", loc=op.loc, notes=notes)


def _seen_by(schedule: Schedule, id: str, ids: tuple[str, ...]) -> Iterator[Note]:
    """One op that is kept and uses what an op makes or writes, if it is an op that does."""
    for edge in edges_of(schedule.source):
        if edge.before == id and edge.after not in ids and edge.kind in (EdgeKind.VALUE, EdgeKind.RAW):
            yield Note(edge.reason, next((op.loc for op in schedule.source.ops() if op.id == edge.after), None))
            return
