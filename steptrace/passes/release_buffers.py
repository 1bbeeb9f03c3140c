"""The pass ``release-buffers``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from steptrace.check.laws import LAWS
from steptrace.check.release_law import LENT, RELEASE
from steptrace.check.units import is_stream
from steptrace.diag.base import SteptraceError
from steptrace.diag.motion import PassOptionError, RingTooSmallError
from steptrace.diag.schedule import CapacityError, DeadlockError
from steptrace.ir.builtin import RESOURCES
from steptrace.ir.program import Loop, Op, Program, ops_of
from steptrace.motion import Schedule, move_to_lane, rename, split
from steptrace.passes.base import declined

_LOOP = "buffers.loop"
_FIRST = RESOURCES["buffers.first"].capacity
"""Buffers for first micro-batches that stand before their loop: of the step that trains, and of the next one."""

_MOST_BUFFERS = 16
"""How many are tried to find out how many a schedule needs."""


@dataclass(frozen=True)
class ReleaseBuffers:
    """Gives the buffer of each micro-batch back once the last call that reads it is done, so that a few are enough.

    Hides nothing; it says when memory that is shared with a trainer or a reference in another process may be used
    again. The call that reads a micro-batch returns before its work is finished, and on a CPU a device array may alias
    the buffer: so the release waits for the work, on the lane ``link``, where that holds up nothing.

    Holds ``ring`` buffers: two for first micro-batches that stand before their loop (``take-ahead``), so that the next
    can be shipped while this one trains, and the others for those of the loop. A micro-batch waits until there is one;
    what a step has in use is given back before the loop of the next step takes any.

    Declines when no op hands out micro-batches, when their buffers are given back already, when a micro-batch is read
    in a later round, and when the schedule has more of them in use at a time than there is room for.
    """

    name: ClassVar[str] = "release-buffers"
    ring: int = 4

    def __post_init__(self) -> None:
        if self.ring <= _FIRST:
            message = f"`ring` of `{self.name}` counts buffers, at least {_FIRST + 1}, not {self.ring}"
            raise PassOptionError(f"{message}: {_FIRST} are kept for first micro-batches that stand before their loop")

    def run(self, schedule: Schedule) -> Schedule:
        """See the class."""
        heads = tuple(op for op in ops_of(schedule.program.body) if LAWS[RELEASE].takes(op.kind))
        if not heads:
            raise declined("no op of the step hands out micro-batches", loc=schedule.program.loc)
        lent = next((op for op in heads if op.attr(LENT)), None)
        if lent is not None:
            raise declined(f"the buffers of `{lent.id}` are given back already", loc=lent.loc)
        for head in heads:
            _check_open(schedule.program, head)
            schedule = split(schedule, head.id, law=RELEASE).schedule
        schedule = move_to_lane(schedule, _movable(schedule.program), lane="link").schedule
        try:
            return rename(schedule, _LOOP, capacity=self.ring - _FIRST).schedule
        except (CapacityError, DeadlockError) as error:
            raise self._too_small(schedule, error) from error

    def _too_small(self, schedule: Schedule, error: SteptraceError) -> RingTooSmallError:
        """The refusal, with what is needed and what there is."""
        needed = next((size for size in range(self.ring + 1, _MOST_BUFFERS) if _fits(schedule, size)), _MOST_BUFFERS)
        message = f"{needed} buffers have to be in use at a time, and the ring has {self.ring}"
        help = f"a larger ring: {self.name}{{ring={needed}}}; or leave out the pass that prepares a micro-batch ahead"
        return RingTooSmallError(message, loc=error.loc, notes=error.notes, help=help)


def _check_open(program: Program, head: Op) -> None:
    """Declines where a head stands in a loop that no motion opens."""
    whole = (node for node in program.body if isinstance(node, Loop) and not is_stream(node))
    loop = next((loop for loop in whole if head in ops_of((loop,))), None)
    if loop is not None:
        message = f"`{head.id}` hands out micro-batches inside loop `{loop.id}`, which is moved as a whole"
        help = "a run of it keeps its micro-batches in memory of the host, which nothing has to give back"
        raise declined(message, loc=head.loc, help=help)


def _movable(program: Program) -> tuple[str, ...]:
    """The releases, peeled and in loops."""
    return tuple(op.id for op in ops_of(program.body) if op.kind == RELEASE)


def _fits(schedule: Schedule, ring: int) -> bool:
    try:
        rename(schedule, _LOOP, capacity=ring - _FIRST)
    except (CapacityError, DeadlockError):
        return False
    return True
