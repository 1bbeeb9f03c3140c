"""The pass ``dce``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from steptrace.check.dead import dead_ops
from steptrace.motion import Schedule, drop
from steptrace.passes.base import declined


@dataclass(frozen=True)
class Dce:
    """Leaves out ops that nobody would miss (dead code elimination).

    Saves the time of users' ops whose values nobody uses and whose writes nobody reads, such as statistics that no op
    logs any more. Built-in ops are all seen: a step that has one without use is refused as it is.

    Holds nothing more in memory.

    Declines when there is no such op; where an op without declared effects may look at everything, there is none.
    """

    name: ClassVar[str] = "dce"

    def run(self, schedule: Schedule) -> Schedule:
        """See the class."""
        here = {op.id for op in schedule.program.ops()}
        dead = tuple(id for id in dead_ops(schedule.source) if id in here)
        if not dead:
            raise declined("every op of the step is seen by another one, or from outside", loc=schedule.program.loc)
        return drop(schedule, dead).schedule
