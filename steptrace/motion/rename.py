"""The motion ``rename``: a resource with one cell for each step gets a ring of so many."""

from __future__ import annotations

from dataclasses import replace

from steptrace.diag.motion import MotionArgumentError
from steptrace.ir.program import Program
from steptrace.ir.resource import ResourceKind
from steptrace.motion.proof import Call, rewritten
from steptrace.motion.schedule import Moved, Schedule


def rename(schedule: Schedule, resource: str, *, capacity: int) -> Moved:
    """Names the cells of a resource modulo ``capacity``: a ring of buffers, whose next step reuses the oldest.

    ``resource host : cell  -->  resource host : cell(2)``   for ``rename(schedule, "host", capacity=2)``

    From then on, step k+capacity takes its cell only after the last use of step k's. A queue of that capacity takes no
    more entries than that.

    Refused when the schedule needs more room than that.

    Args:
      schedule: the schedule.
      resource: name of a resource of kind cell or fifo.
      capacity: how many there are, at least 1.

    Raises:
      CapacityError: as above.
      MotionArgumentError: no such resource, or one without cells.
    """
    known = schedule.program.resource_table().get(resource)
    if known is None or known.kind not in (ResourceKind.CELL, ResourceKind.FIFO):
        names = ", ".join(
            one.name for one in schedule.program.resources if one.kind in (ResourceKind.CELL, ResourceKind.FIFO)
        )
        what = "is no resource of the program" if known is None else f"is one {known.kind.value}"
        raise MotionArgumentError(f"`{resource}` {what}, with no cells to count", help=f"cells and queues are: {names}")
    if capacity < 1:
        raise MotionArgumentError(f"`{resource}` holds at least 1, not {capacity}")
    program, reference = (_sized(one, resource, capacity) for one in (schedule.program, schedule.reference))
    claim = f"`{resource}` has room for {capacity} at a time"
    call = Call("rename", (resource,), (("capacity", capacity),))
    return rewritten(schedule, program, reference, call, claim, how="slack")


def _sized(program: Program, name: str, capacity: int) -> Program:
    return replace(
        program,
        resources=tuple(
            replace(resource, capacity=capacity) if resource.name == name else resource
            for resource in program.resources
        ),
    )
