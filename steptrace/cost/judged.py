"""A schedule judged by its costs: period, bottleneck, idle time, memory, and how far it is from the bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from steptrace.cost.bound import Bound
from steptrace.cost.file import Costs
from steptrace.cost.memory import Held, memory_of, memory_over_time
from steptrace.cost.period import Period, period_of
from steptrace.lower import lower
from steptrace.motion import Schedule
from steptrace.simulate import Durations, Run, simulate


@dataclass(frozen=True)
class Judged:
    """A schedule with its period.

    Attributes:
      schedule: the schedule.
      durations: the costs.
      micro_batches: how many a step has; the largest, where they differ.
      period: its period.
      bound: of every legal schedule of its program, None where it was not asked for.
    """

    schedule: Schedule
    durations: Durations
    micro_batches: int
    period: Period
    bound: Bound | None = None

    @property
    def over_bound(self) -> float | None:
        """The period as a multiple of the bound."""
        return self.period.seconds / self.bound.seconds if self.bound and self.bound.seconds else None

    @cached_property
    def run(self) -> Run:
        """A run in virtual time, two turns longer than it takes to settle."""
        steps = self.period.first + 2 * self.period.cadence + self.period.plan.ahead + 1
        return simulate(self.period.plan, self.durations, micro_batches=self.micro_batches, steps=steps)

    @property
    def boundary_idle_s(self) -> float:
        """How long the trainer's device is idle between the last micro-batch of a step and the next step's first."""
        return self._mean(self.run.boundary_idle_s())

    @property
    def idle_s(self) -> float:
        """How long the trainer's device is idle in a step."""
        return self._mean(self.run.idle_s())

    @property
    def busy_fraction(self) -> float:
        """Share of the period that the trainer's device works."""
        return 1.0 - self.idle_s / self.period.seconds if self.period.seconds else 0.0

    def memory(self, costs: Costs) -> tuple[Held, ...]:
        """What it holds in memory at most."""
        return memory_of(self.run, costs.sizes, self.schedule.program)

    def memory_over_time(self, costs: Costs) -> dict[str, tuple[tuple[float, float], ...]]:
        """What it holds over the time of the run, by whose memory it is: moments, with the bytes from then on."""
        return memory_over_time(self.run, costs.sizes)

    def _mean(self, by_step: dict[int, float]) -> float:
        """The mean over a turn that has settled."""
        first = self.period.first
        seen = [by_step[step] for step in range(first, first + self.period.cadence) if step in by_step]
        return sum(seen) / len(seen) if seen else 0.0


def judged(
    schedule: Schedule, durations: Durations, *, micro_batches: int | Sequence[int], bound: Bound | None = None
) -> Judged:
    """The period of a schedule, and what goes with it.

    Raises:
      SteptraceError: it cannot be lowered, or has no period.
    """
    plan = lower(schedule.program, source=schedule.source)
    period = period_of(plan, durations, micro_batches=micro_batches)
    return Judged(schedule, durations, period.micro_batches, period, bound)
