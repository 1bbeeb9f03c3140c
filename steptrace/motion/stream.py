"""The motion ``stream``: the step trains on its groups as they arrive."""

from __future__ import annotations

from steptrace.check.laws import apply_law
from steptrace.check.stream_law import ASSUMES, STREAM, chain_of
from steptrace.diag.motion import PlaceError
from steptrace.ir.program import Loop, Op, ops_of
from steptrace.motion.edit import node_of
from steptrace.motion.proof import Call, in_words, rewritten
from steptrace.motion.schedule import Moved, Schedule


def stream(schedule: Schedule, loop: str) -> Moved:
    """Takes, scores and packs the groups of a step inside its loop, one after the other, instead of all before it.

    ``take; reward; advantages; pack; loop m in %batch { next_mb; a }  -->  loop m { stream_mb; a }``

    The step in bulk is the streamed step with its stream drained first, provided that packing is prefix-stable: a group
    that arrives later changes no micro-batch that is complete.

    Refused when something on the way from the queue to the batch needs all groups of the step (advantages normalised
    over the step, a user's op on its groups), when something else uses the groups or the batch or stands in between,
    when an op of the loop would see a step of which some groups are missing, or writes what stays when one of those
    fails; and when the step runs ahead, or its first micro-batch stands outside the loop.

    Args:
      schedule: the schedule.
      loop: id of the loop over micro-batches.

    Raises:
      LawError: as above.
      PlaceError: it is no loop, or its first node is none.
      UnknownOpError: there is no such loop.
    """
    node = node_of(schedule.program, loop)
    head = node.body[0] if isinstance(node, Loop) else node
    if not isinstance(node, Loop) or not isinstance(head, Op):
        raise PlaceError(f"`{loop}` is no loop that begins with an op", loc=node.loc, help="name the loop")
    program, reference = (apply_law(one, head.id, STREAM) for one in (schedule.program, schedule.reference))
    parts = (*(op.id for op in chain_of(schedule.program, node)), head.id)
    known = {op.id for op in ops_of(schedule.program.body)}
    (new,) = (op.id for op in ops_of(program.body) if op.id not in known)
    claim = f"`{new}` takes, scores and packs groups as they arrive, for {in_words(parts)}"
    forwarding = dict.fromkeys(parts, (new,))
    call = Call("stream", (loop,))
    return rewritten(schedule, program, reference, call, claim, forwarding=forwarding, at=loop, assumes=ASSUMES)
