"""The pass ``memory-budget``."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor
from typing import ClassVar

from steptrace.check.units import units_of
from steptrace.diag.base import Note, SteptraceError
from steptrace.diag.motion import MemoryBudgetError, PassOptionError
from steptrace.diag.schedule import CapacityError, DeadlockError
from steptrace.motion import Schedule, budget
from steptrace.motion.budget import holders_of
from steptrace.passes.base import declined

_POOL = "trainer.copies"
_MOST_COPIES = 16
"""How many copies are tried to find out how many a schedule needs."""


@dataclass(frozen=True)
class MemoryBudget:
    """Keeps the copies of the parameters that are live at a time within a budget.

    Saves memory: a weight sync in the background holds a copy until it is transferred, and a checkpoint in the
    background one until it is written, so together they may need what neither needs alone. With a budget for one
    copy, the copy for the sync waits until the checkpoint is written, and the next snapshot until the weights are
    transferred; each still runs beside training.

    Holds at most so many whole copies: ``copies`` is the budget in units of the parameters, so 1.5 has room for one. It
    may be given in bytes instead: ``bytes``, with ``params_bytes`` for the parameters. What a snapshot holds besides,
    the optimizer state, is not counted, nor what a blocking sync or save needs while its call lasts.

    Declines when no op holds a copy (``async-weight-sync`` and ``async-checkpoint`` come first), when the budget has no
    room for even one, and when the schedule needs more than it has room for in whatever way its lanes wait.
    """

    name: ClassVar[str] = "memory-budget"
    copies: float = 1.0
    bytes: int = 0
    params_bytes: int = 0

    def __post_init__(self) -> None:
        if self.copies <= 0 or self.bytes < 0 or self.params_bytes < 0:
            raise PassOptionError(f"the options of `{self.name}` are sizes, and sizes are positive")
        if bool(self.bytes) != bool(self.params_bytes):
            raise PassOptionError(
                f"`{self.name}` needs `params_bytes` to count copies in `bytes`, and the other way round"
            )

    def run(self, schedule: Schedule) -> Schedule:
        """See the class."""
        holders = holders_of(schedule.program, _POOL)
        if not holders:
            message = "no op of the step holds a copy of the parameters"
            raise declined(message, loc=schedule.program.loc, help="put `async-weight-sync` before this pass")
        room = self._room()
        if room < 1:
            raise self._too_small(schedule, 1, holders, None)
        try:
            return budget(schedule, _POOL, capacity=room).schedule
        except (CapacityError, DeadlockError) as error:
            raise self._too_small(schedule, _needed(schedule, room), holders, error) from error

    def _room(self) -> int:
        return self.bytes // self.params_bytes if self.bytes else floor(self.copies)

    def _words(self) -> str:
        if self.bytes:
            return f"{self.bytes} bytes, for parameters of {self.params_bytes},"
        return f"{self.copies:g} times the parameters"

    def _too_small(
        self, schedule: Schedule, needed: int, holders: tuple[str, ...], error: SteptraceError | None
    ) -> MemoryBudgetError:
        """The refusal, with what is needed, what there is, and who holds it."""
        units = units_of(schedule.program)
        copies = "1 copy of the parameters has" if needed == 1 else f"{needed} copies of the parameters have"
        message = f"{copies} to be live at a time, and a budget of {self._words()} has room for {self._room()}"
        notes = tuple(Note(f"`{id}` makes a copy", units[id].loc) for id in holders)
        help = f"allow more: memory-budget{{copies={needed}}}, or leave out the pass that makes one of them"
        return MemoryBudgetError(
            message, loc=schedule.program.loc, notes=(*notes, *(error.notes if error else ())), help=help
        )


def _needed(schedule: Schedule, room: int) -> int:
    """The least number of copies with which the schedule can run."""
    for copies in range(room + 1, _MOST_COPIES):
        try:
            budget(schedule, _POOL, capacity=copies)
        except (CapacityError, DeadlockError):
            continue
        return copies
    return _MOST_COPIES
