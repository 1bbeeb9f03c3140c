"""The period of a schedule: how long a step takes once the run has settled, and which circle makes it so.

For fixed durations a schedule's events are a graph that repeats itself: an event comes so long after another one of so
many steps before. Whatever the start was like, in the long run a step takes the largest of latency over distance along
the circles of that graph (Cuninghame-Green 1979; Baccelli, Cohen, Olsder, Quadrat 1992). It is exact. What a device has
to do in a step is one of the circles, though nothing may wait for it (`shared.py`): a run of many steps is over when
all of its work is done. Cadences are written out to their common period. For counts of micro-batches that differ there
is a bound from either side, and it says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from types import MappingProxyType

from steptrace.cost.folded import Folded, folded
from steptrace.cost.machine import Decided, Locked, Machine
from steptrace.cost.moments import Events, SendKey
from steptrace.cost.ratio import Largest, Standstill, largest_ratio
from steptrace.cost.shared import Paces, in_turn, shared, unawaited
from steptrace.cost.walk import walk
from steptrace.diag.base import Note
from steptrace.diag.cost import NoPeriodError, NoRepetitionError
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
      NoPeriodError: the lanes lock up.
      NoRepetitionError: nothing repeats itself within the steps that are looked at.
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
    settled = cadence * -(-(4 + plan.ahead + plan.program.contract.staleness) // cadence)
    limit = max(_MOST_STEPS, 6 * cadence)
    begin, more, as_run = settled, 0, False
    while True:
        end = begin + 2 * cadence
        steps = end + plan.ahead + 1 + more
        walked = _walked(plan, durations, (micro_batches,) * steps, flags, as_run=as_run)
        for turn in range(cadence, (end - settled) // 2 + 1, cadence):
            first = end - 2 * turn
            found = _turned(walked, first, turn)
            if found is not None:
                graph, largest = found
                exact = largest.ratio / turn
                seconds = float(exact)
                return Period(seconds, seconds, exact, turn, micro_batches, graph, largest, plan, walked.run, first)
        if steps > limit or (
            not more and walked.ordered and _runs_ahead(walked, plan, durations, flags, end - 2 * cadence)
        ):
            raise NoRepetitionError(
                f"in {steps} steps of `{plan.program.name}` nothing repeats itself",
                loc=plan.program.loc,
                help="let one lane send the work of a device, or simulate a number of steps instead",
            )
        begin *= 2
        as_run |= bool(walked.loose)
        more = begin if walked.ordered else 0  # behind the end, for lanes that run ahead of the others there


@dataclass(frozen=True)
class _Walked:
    """What happens in so many steps, and the devices that several lanes send work to.

    Attributes:
      events: the events.
      run: a run of as many steps, where one had to tell what a run decides by the time.
      loose: the devices that have no order, since nothing waits for them.
      ordered: those that have the order of the run.
      ends: when each piece of their work ended in it.
      counts: micro-batches of each step.
      decided: what the run decided.
    """

    events: Events
    run: Run | None
    loose: frozenset[str]
    ordered: frozenset[str]
    ends: Mapping[SendKey, float]
    counts: tuple[int, ...]
    decided: Decided


def _turned(walked: _Walked, first: int, turn: int) -> tuple[Folded, Largest] | None:
    """The graph of a turn with its largest ratio; None where turns differ, or where lanes do not keep pace."""
    events = walked.events
    if not all(in_turn(events.sends[device], events, first, turn) for device in walked.ordered):
        return None
    graph = folded(events, first, turn)
    if graph is None:
        return None
    try:
        largest = largest_ratio(graph)
        paces = Paces(graph, largest)
        for device in (*walked.loose, *walked.ordered):
            if not paces.agree(events.sends[device], events, ordered=device in walked.ordered):
                return None
        if not all(paces.reached(events.sends[device], events, first, walked.ends) for device in walked.ordered):
            return None
    except Standstill:
        return None
    return graph, largest


def _runs_ahead(walked: _Walked, plan: Plan, durations: Durations, flags: Flags, first: int) -> bool:
    """Whether one of the lanes that send work to a device runs ahead of another one for ever."""
    events = walk(Machine(plan, durations, walked.counts, walked.decided, flags))
    events.in_order({}, walked.loose)
    graph = folded(events, first, cadence_of(plan))
    if graph is None:
        return False
    try:
        paces = Paces(graph, largest_ratio(graph))
        return any(paces.part(events.sends[device], events) for device in walked.ordered)
    except Standstill:
        return False


def _walked(plan: Plan, durations: Durations, counts: tuple[int, ...], flags: Flags, *, as_run: bool) -> _Walked:
    """Walk through so many steps.

    Args:
      plan, durations, counts, flags: what to walk through.
      as_run: whether every device that several lanes send work to has the order of a run, awaited or not.
    """
    run = None
    try:
        if decides_by_time(plan):
            run = simulate(plan, durations, micro_batches=counts, flags=flags)
        decided = Decided() if run is None else decided_in(run)
        events = walk(Machine(plan, durations, counts, decided, flags))
        loose = frozenset() if as_run else shared(events) & unawaited(events)
        ordered = shared(events) - loose
        if ordered and run is None:
            run = simulate(plan, durations, micro_batches=counts, flags=flags)
    except (Locked, SimulatedDeadlockError) as error:
        raise NoPeriodError(
            f"the lanes of `{plan.program.name}` wait for one another",
            loc=plan.program.loc,
            notes=error.notes if isinstance(error, SimulatedDeadlockError) else tuple(map(Note, error.waiting)),
            help="lower the plan from a schedule that was checked",
        ) from error
    events.in_order({} if run is None else order_in(run, ordered), loose)
    ends = {} if run is None else ends_in(run, ordered)
    return _Walked(events, run, loose, ordered, ends, counts, decided)


def decides_by_time(plan: Plan) -> bool:
    """Whether what a plan runs depends on when things happen: an op of it polls."""
    return any(call.kind.polls for call in plan.calls())


def decided_in(run: Run) -> Decided:
    """What a run decided."""
    return Decided(
        frozenset((event.op, event.step, event.micro) for event in run.events),
        frozenset(run.stages),
    )


def order_in(run: Run, devices: Set[str]) -> dict[SendKey, int]:
    """The places of the work of some devices in the order in which a run did it."""
    return {key: at for at, key in enumerate(ends_in(run, devices))}


def ends_in(run: Run, devices: Set[str]) -> dict[SendKey, float]:
    """When the work of some devices ended in a run, in seconds, in the order in which it was done."""
    return {
        (span.device, span.op, span.step, span.micro, span.what): span.end
        for span in run.spans
        if span.device in devices
    }


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
