"""The pass ``autoschedule``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from steptrace.diag.motion import PassOptionError
from steptrace.motion import Schedule
from steptrace.passes.base import declined

if TYPE_CHECKING:
    from steptrace.cost import Costs, Held, Judged
    from steptrace.passes.search import Found, Limits


@dataclass(frozen=True)
class Autoschedule:
    """Finds the schedule with the smallest period: it tries the other passes and single places of ops.

    Hides what it can: a search over pipelines of the other passes, with their options and in every order that leads
    on, then over single places of ops (`place`). The graph of each schedule judges it, with what ops take from a cost
    file (``costs``; ``micro_batches`` a step where the file does not say how many). It stops when the lower bound for
    any legal schedule is reached, when nothing is left to try, or after ``tries`` schedules of a whole train step: of
    a smaller one more, and fewer where cadences make its turn long, since these take as much longer to judge. What it
    finds is said as a pipeline that gives the same schedule again, without a search. The same options give the same
    schedule; ``seed`` is for the order in which places are tried. The contract stays as it is, and so do results, bit
    for bit; with ``recompiled``, passes are tried too under which they agree within rounding.

    Holds at most ``memory``, a size such as "80 GB", of what the file has sizes for; as much as it likes without.

    Declines when it has no costs, or none for an op of the step; when nothing is faster than what there is; and when
    no schedule that is tried is within the memory.
    """

    name: ClassVar[str] = "autoschedule"
    costs: str = ""
    memory: str = ""
    seed: int = 0
    tries: int = 250
    micro_batches: int = 0
    recompiled: bool = False

    def __post_init__(self) -> None:
        if self.tries < 1 or self.micro_batches < 0:
            raise PassOptionError(f"`tries` and `micro_batches` of `{self.name}` count from 1 on")
        if self.memory:
            self._room()

    def run(self, schedule: Schedule) -> Schedule:
        """See the class."""
        return self.told(schedule)[0]

    def told(self, schedule: Schedule) -> tuple[Schedule, str]:
        """The schedule that was found, and as what pipeline, how fast, and why the search stopped."""
        from steptrace.cost import read_costs  # the costs and the search load only where there is one

        if not self.costs:
            help = f'name a cost file: {self.name}{{costs="costs.toml"}}, or --costs=costs.toml of the command'
            raise declined("there are no costs to judge schedules by", loc=schedule.program.loc, help=help)
        found = self.search(schedule, read_costs(self.costs))
        said = words_of(found)
        if not found.pipeline:
            raise declined(f"no schedule that was tried is faster than what there is: {said}", loc=schedule.program.loc)
        return found.schedule, said

    def search(self, schedule: Schedule, costs: Costs) -> Found:
        """The search with costs that are there already; the schedule that there is where nothing is faster.

        Raises:
          SteptraceError: an op has no cost, the program has no period, or nothing is within the memory.
        """
        from steptrace.cost import bytes_of, check_memory
        from steptrace.passes.search import search

        count = self.micro_batches or costs.micro_batches
        if not count:
            help = f"{self.name}{{micro_batches=8}}, or [cell] in the cost file"
            raise declined("nothing says how many micro-batches a step has", loc=schedule.program.loc, help=help)
        limits, seen = self._limits(costs)
        found = search(schedule, costs.covering(schedule.source), micro_batches=count, limits=limits)
        if found is None:
            check_memory(min(seen, key=bytes_of), self._room(), schedule.program.loc)
        assert found is not None, "what is within the memory is found"
        return found

    def _limits(self, costs: Costs) -> tuple[Limits, list[tuple[Held, ...]]]:
        """How far to go, and where is written down what schedules hold."""
        from steptrace.cost import bytes_of
        from steptrace.passes.search import Limits

        seen: list[tuple[Held, ...]] = []
        if not self.memory:
            return Limits(self.tries, self.seed, recompiled=self.recompiled), seen
        costs.require_sizes()
        room = self._room()

        def fits(one: Judged) -> bool:
            seen.append(one.memory(costs))
            return bytes_of(seen[-1]) <= room

        return Limits(self.tries, self.seed, fits=fits, recompiled=self.recompiled), seen

    def _room(self) -> float:
        from steptrace.cost import quantity

        try:
            return quantity(self.memory, "size")
        except ValueError as error:
            raise PassOptionError(f"`memory` of `{self.name}`: {error}") from error


def words_of(found: Found) -> str:
    """What a search found, in a sentence."""
    from steptrace.cost import seconds_in_words

    period, bound = (seconds_in_words(one) for one in (found.judged.period.seconds, found.bound.seconds))
    pipeline = found.pipeline or "(nothing)"
    return f"{pipeline}\n  period {period}, bound {bound}, {found.tried} schedules judged; stopped: {found.why}"
