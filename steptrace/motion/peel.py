"""The motion ``peel``: the first micro-batch of a loop stands before it."""

from __future__ import annotations

from steptrace.check.peel import peel_first
from steptrace.ir.program import Loop, Op, ops_of
from steptrace.motion.edit import node_of
from steptrace.motion.proof import Call, rewritten
from steptrace.motion.schedule import Moved, Schedule


def peel(schedule: Schedule, loop: str) -> Moved:
    """Writes the ops of a loop's first micro-batch out before the loop, so that they can be moved by themselves.

    ``loop m { a; b }  -->  a.first at(m=0); b.first at(m=0); loop m from 1 { a; b }``

    Refused when the loop is not one over micro-batches directly in the step, starts later already, holds other loops or
    shifted ops, or looks at the micro-batch before.

    Args:
      schedule: the schedule.
      loop: id of the loop.

    Raises:
      PeelError: as above.
      UnknownOpError: there is no such loop.
    """
    program, reference = peel_first(schedule.program, loop), peel_first(schedule.reference, loop)
    node = node_of(schedule.program, loop)
    inside = ops_of(node.body if isinstance(node, Loop) else ())
    first = {op.origin: op.id for op in program.body if isinstance(op, Op) and op.micro == 0}
    forwarding = {op.id: (first[op.origin], op.id) for op in inside}
    claim = f"took the first micro-batch out of loop `{loop}`, to stand in front of it"
    return rewritten(schedule, program, reference, Call("peel", (loop,)), claim, forwarding=forwarding, at=loop)
