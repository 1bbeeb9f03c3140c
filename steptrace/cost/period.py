"""The period of a schedule: how long a step takes once the run has settled, and which circle makes it so.

For fixed durations a schedule's events are a graph that repeats itself: an event comes so long after another one of so
many steps before. Whatever the start was like, in the long run a step takes the largest of latency over distance along
the circles of that graph (Cuninghame-Green 1979; Baccelli, Cohen, Olsder, Quadrat 1992). It is exact. Cadences are
written out to their common period. For counts of micro-batches that differ there is a bound from either side, and it
says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from types import MappingProxyType

from steptrace.cost.folded import Folded, folded
from steptrace.cost.machine import Decided, Locked, Machine
from steptrace.cost.moments import Events
from steptrace.cost.ratio import Largest, Standstill, largest_ratio
from steptrace.cost.walk import walk
from steptrace.diag.base import Note
from steptrace.diag.cost import NoPeriodError
from steptrace.diag.simulation import SimulatedDeadlockError
from steptrace.ir import And, Every, Not, Or, Predicate
from steptrace.lower import Plan
from steptrace.lower.fallbacks import fitted
from steptrace.simulate import Durations, Run, VirtualTrainer, simulate
from steptrace.simulate.trainer import capabilities_of

Flags = Mapping[str, Callable[[int, int], bool]]

_NO_FLAGS: Flags = MappingProxyType({})

RARE = 60
"""What runs less often than every so many steps counts as never: the period leaves its time out, divided by as many."""

_MOST_STEPS = 200
"""So many steps are looked at for a turn that repeats itself, unless the cadences ask for more."""


@dataclass(frozen=True)
class Period:
    """The steady state of a schedule.

    Attributes:
      seconds: of a step; for counts that differ, at most so long on average.
      least: for counts that differ, at least so long on average; otherwise the same.
      exact: the same seconds as a fraction, where they are exact.
      cadence: after how many steps everything repeats itself: the common period of the cadences, or a multiple of it
        where what a run decides alternates.
      micro_batches: how many a step has; the largest, where they differ.
      graph: the events of that many steps.
      largest: the circle with the largest ratio.
      plan: the plan that it is the period of.
      run: a run of that many micro-batches in virtual time, where one had to tell what a run decides by the time.
      first: the step of the run from which on the graph holds.
    """

    seconds: float
    least: float
    exact: Fraction | None
    cadence: int
    micro_batches: int
    graph: Folded
    largest: Largest
    plan: Plan
    run: Run | None
    first: int

    @property
    def is_bound(self) -> bool:
        """Whether it is no more than bounds from either side."""
        return self.exact is None


def period_of(
    plan: Plan, durations: Durations, *, micro_batches: int | Sequence[int], flags: Flags = _NO_FLAGS
) -> Period:
    """The period of a plan.

    Args:
      plan: a lowered program or schedule.
      durations: how long its ops take; single instances do not differ (``varying`` is left out).
      micro_batches: how many a step has; several numbers where steps differ, in whatever order.
      flags: for flags that users' ops make, by the name of the value; those that are not there are true.

    Returns:
      The period; for counts that differ, bounds: a step is at least as long as if all had the fewest, and at most as if
      all had the most.

    Raises:
      NoPeriodError: the lanes lock up, or nothing repeats itself within the steps that are looked at.
    """
    counts = (micro_batches,) if isinstance(micro_batches, int) else tuple(micro_batches)
    durations = Durations(durations.costs, durations.other, firsts=durations.firsts)
    plan, _ = fitted(plan, plan.target.capabilities | capabilities_of(VirtualTrainer()))
    most = _fixed(plan, durations, max(counts), flags)
    if min(counts) == max(counts):
        return most
    least = _fixed(plan, durations, min(counts), flags)
    fields = (most.cadence, most.micro_batches, most.graph, most.largest, most.plan, most.run, most.first)
    return Period(most.seconds, least.seconds, None, *fields)


def _fixed(plan: Plan, durations: Durations, micro_batches: int, flags: Flags) -> Period:
    cadence = cadence_of(plan)
    first = cadence * -(-(4 + plan.ahead + plan.program.contract.staleness) // cadence)
    limit = max(_MOST_STEPS, 6 * cadence)
    settled, begin = first, first
    while True:
        end = begin + 2 * cadence
        steps = end + plan.ahead + 1
        events, run = _walked(plan, durations, (micro_batches,) * steps, flags)
        for turn in range(cadence, (end - settled) // 2 + 1, cadence):
            graph = folded(events, end - 2 * turn, turn)
            if graph is not None:
                largest = _largest(graph, plan)
                exact = largest.ratio / turn
                seconds = float(exact)
                return Period(seconds, seconds, exact, turn, micro_batches, graph, largest, plan, run, end - 2 * turn)
        if steps > limit:
            raise NoPeriodError(
                f"in {steps} steps of `{plan.program.name}` nothing repeats itself",
                loc=plan.program.loc,
                help="simulate a number of steps instead",
            )
        begin *= 2


def _largest(graph: Folded, plan: Plan) -> Largest:
    try:
        return largest_ratio(graph)
    except Standstill as error:
        raise NoPeriodError(
            f"several lanes of `{plan.program.name}` send work to a device, in an order that does not repeat itself",
            loc=plan.program.loc,
            help="let one lane send it, or simulate a number of steps instead",
        ) from error


def _walked(plan: Plan, durations: Durations, counts: tuple[int, ...], flags: Flags) -> tuple[Events, Run | None]:
    run = None
    try:
        if decides_by_time(plan):
            run = simulate(plan, durations, micro_batches=counts, flags=flags)
        events = walk(Machine(plan, durations, counts, Decided() if run is None else decided_in(run), flags))
        if run is None and any(len({send.lane for send in sends}) > 1 for sends in events.sends.values()):
            run = simulate(plan, durations, micro_batches=counts, flags=flags)
            events = walk(Machine(plan, durations, counts, decided_in(run), flags))
    except (Locked, SimulatedDeadlockError) as error:
        raise NoPeriodError(
            f"the lanes of `{plan.program.name}` wait for one another",
            loc=plan.program.loc,
            notes=error.notes if isinstance(error, SimulatedDeadlockError) else tuple(map(Note, error.waiting)),
            help="lower the plan from a schedule that was checked",
        ) from error
    return events, run


def decides_by_time(plan: Plan) -> bool:
    """Whether what a plan runs depends on when things happen: an op of it polls."""
    return any(call.kind.polls for call in plan.calls())


def decided_in(run: Run) -> Decided:
    """What a run decided."""
    return Decided(
        frozenset((event.op, event.step, event.micro) for event in run.events),
        frozenset(run.stages),
        {(span.device, span.op, span.step, span.micro, span.what): at for at, span in enumerate(run.spans)},
    )


def cadence_of(plan: Plan) -> int:
    """After how many steps the conditions on the step have all been through."""
    return lcm(1, *(period for call in plan.calls() for period in every_of(call.when)))


def every_of(predicate: Predicate) -> Iterator[int]:
    """The cadences that a condition asks for; those of more than `RARE` steps count as never."""
    match predicate:
        case Every(period) if period <= RARE:
            yield period
        case Not(term):
            yield from every_of(term)
        case And(terms) | Or(terms):
            for term in terms:
                yield from every_of(term)
