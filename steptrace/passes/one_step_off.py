"""The pass ``one-step-off``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from steptrace.diag.motion import PassOptionError
from steptrace.motion import Schedule, relax, rotate
from steptrace.passes.base import declined
from steptrace.passes.roles import pushes_and_pops


@dataclass(frozen=True)
class OneStepOff:
    """Generates the next step's rollouts while this one trains, with weights that are ``staleness`` updates older.

    Hides generation behind training: the dispatch of step k+staleness is issued before the groups of step k are taken.
    This changes what is trained, so it is the one pass that relaxes the contract: the source of all later proofs is the
    program with that staleness. Other systems call the schedule one-step off-policy (`staleness=1`).

    Holds the groups of ``staleness`` more steps in the queue.

    Declines when the contract allows that staleness, but dispatches run ahead already, or the step does not dispatch.
    """

    name: ClassVar[str] = "one-step-off"
    staleness: int = 1

    def __post_init__(self) -> None:
        if self.staleness < 1:
            raise PassOptionError(f"`staleness` of `{self.name}` counts updates, at least 1, not {self.staleness}")

    def run(self, schedule: Schedule) -> Schedule:
        """See the class."""
        pushes, pops = pushes_and_pops(schedule.program)
        ids = tuple(op.id for op in pushes if op in schedule.program.body)
        if not ids or not pops:
            raise declined("the step dispatches nothing that it takes", loc=schedule.program.loc)
        if any(op.shift for op in pushes):
            raise declined(f"`{ids[0]}` runs ahead already", loc=pushes[0].loc)
        if schedule.program.contract.staleness < self.staleness:
            schedule = relax(schedule, staleness=self.staleness).schedule
        others = [node.id for node in schedule.program.body if node.id not in ids]
        at = min(at for at, node in enumerate(schedule.program.body) if node.id in ids)
        return rotate(schedule, ids, ahead=self.staleness, above=others[at]).schedule
