"""The motion ``budget``: of the cells of several resources only so many are in use at a time."""

from __future__ import annotations

from dataclasses import replace

from steptrace.check.units import units_of
from steptrace.diag.motion import MotionArgumentError
from steptrace.ir.builtin import RESOURCES
from steptrace.ir.program import Program
from steptrace.ir.resource import Access, Resource, ResourceKind, parts_of_pool
from steptrace.motion.proof import Call, in_words, rewritten
from steptrace.motion.schedule import Moved, Schedule


def budget(schedule: Schedule, pool: str, *, capacity: int) -> Moved:
    """Gives several resources with a cell for each step one room for all their cells: a pool.

    ``copies.a : cell; copies.b : cell  -->  copies : slot(1)``   for ``budget(schedule, "copies", capacity=1)``

    The parts of a pool are the cells whose names begin with its own: ``trainer.copies.sync`` is a part of
    ``trainer.copies``. From then on an op that takes a cell waits until, ``capacity`` cells before, one was given up.

    Refused when the schedule needs more room than that.

    Args:
      schedule: the schedule.
      pool: name of the pool.
      capacity: how many cells there are for all parts together, at least 1.

    Raises:
      CapacityError, DeadlockError: as above.
      MotionArgumentError: no resource of the program is a part of it, or one that is none of cells.
    """
    made = replace(RESOURCES.get(pool, Resource(pool, ResourceKind.SLOT)), capacity=capacity)
    parts = [one for one in schedule.program.resources if one.name in parts_of_pool(made, (one.name,))]
    wrong = next((one for one in parts if one.kind is not ResourceKind.CELL), None)
    if not parts or wrong is not None:
        what = (
            f"`{wrong.name}` is one {wrong.kind.value}"
            if wrong
            else f"no resource of the program is a part of `{pool}`"
        )
        raise MotionArgumentError(f"`{pool}` has no cells to count: {what}", help="a part of a pool has a cell a step")
    if capacity < 1:
        raise MotionArgumentError(f"`{pool}` holds at least 1, not {capacity}")
    program, reference = (_with_pool(one, made) for one in (schedule.program, schedule.reference))
    holders = in_words(holders_of(schedule.program, pool))
    claim = f"`{pool}` has room for {capacity} at a time, of all that {holders} make"
    return rewritten(
        schedule, program, reference, Call("budget", (pool,), (("capacity", capacity),)), claim, how="slack"
    )


def holders_of(program: Program, pool: str) -> tuple[str, ...]:
    """The ops of the step, by id, that write a cell of a pool, in order."""
    made = Resource(pool, ResourceKind.SLOT)
    return tuple(
        unit.id
        for unit in units_of(program)
        if any(one.access is Access.WRITE and parts_of_pool(made, (one.resource,)) for one in unit.effects)
    )


def _with_pool(program: Program, pool: Resource) -> Program:
    others = tuple(resource for resource in program.resources if resource.name != pool.name)
    return replace(program, resources=(*others, pool))
