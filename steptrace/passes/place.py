"""The pass ``place``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from steptrace.diag.base import SteptraceError
from steptrace.diag.motion import PassOptionError
from steptrace.ir import Op, Program
from steptrace.motion import Schedule, hoist, move_to_lane, rotate, sink
from steptrace.motion.edit import changed, following, home_of, nodes_at, regrouped
from steptrace.passes.base import declined


@dataclass(frozen=True)
class Place:
    """Gives ops another place: a lane, a number of steps ahead, and what they stand above or below.

    Hides what they do behind what runs beside them from then on; `autoschedule` is made of it where the other passes
    have nothing to give. ``op`` is one, or several that keep their order: ``log+on_step_end``. ``ahead`` counts from
    where they are, as in `rotate`: 1 is one step earlier, -1 one later; in a loop over micro-batches it counts those.
    With neither ``above`` nor ``below``, ops that are rotated go to the end, and others keep their place.

    Holds in memory what the ops make, for as many steps as they run ahead.

    Declines when no ``op`` is named, when none would change its place, when an edge stands in the way, and when an op
    that may fail would be left behind by what must not stay then: a log by a callback, unless the contract says
    ``logs=may_fail_late``.
    """

    name: ClassVar[str] = "place"
    by_hand: ClassVar[bool] = True
    op: str = ""
    lane: str = ""
    ahead: int = 0
    above: str = ""
    below: str = ""

    def __post_init__(self) -> None:
        if self.above and self.below:
            raise PassOptionError(f"`{self.name}` takes `above` or `below`, not both")

    def run(self, schedule: Schedule) -> Schedule:
        """See the class."""
        if not self.op:
            raise declined("no op is named", loc=schedule.program.loc, help=f"{self.name}{{op=free, lane=io}}")
        try:
            placed = self._stood(self._on_lane(schedule))
        except SteptraceError:
            placed = self._on_lane(self._stood(schedule))
        if placed.program == schedule.program:
            raise declined(f"`{self.op}` stands there already", loc=schedule.program.loc)
        return placed

    def edited(self, program: Program) -> Program:
        """The program with the ops there, legal or not: what `run` gives where it does not decline."""
        program = changed(program, self.ops, self._changed)
        home = home_of(program, self.ops[0])
        if self.above or self.below:
            before = self.above or following(program, home, self.ops, self.below)
            return regrouped(program, home, self.ops, before)
        return regrouped(program, home, self.ops, None) if self.ahead else program

    def _changed(self, op: Op) -> Op:
        return replace(op, lane=self.lane or op.lane, shift=op.shift + self.ahead)

    @property
    def ops(self) -> tuple[str, ...]:
        """The ops."""
        return tuple(self.op.split("+"))

    def _on_lane(self, schedule: Schedule) -> Schedule:
        if not self.lane or all(op.lane == self.lane for op in schedule.program.ops() if op.id in self.ops):
            return schedule
        return move_to_lane(schedule, self.ops, lane=self.lane).schedule

    def _stood(self, schedule: Schedule) -> Schedule:
        ids = [node.id for node in nodes_at(schedule.program, home_of(schedule.program, self.ops[0]))]
        others = [id for id in ids if id not in self.ops]
        above = self.above
        if self.below in others[:-1]:
            above = others[others.index(self.below) + 1]
        if self.ahead:
            return rotate(schedule, self.ops, ahead=self.ahead, above=above).schedule
        anchor = self.above or self.below
        if not anchor:
            return schedule
        if anchor not in others or not set(self.ops) <= set(ids):
            return hoist(schedule, self.ops, above=anchor).schedule  # refused, with its reason
        wanted = [id for id in ids if id in self.ops]
        at = others.index(above) if above else len(others)
        if [*others[:at], *wanted, *others[at:]] == ids:
            return schedule
        if above and ids.index(above) < ids.index(wanted[0]):
            return hoist(schedule, self.ops, above=above).schedule
        return sink(schedule, self.ops, below=others[at - 1]).schedule
