"""Random schedules on several lanes, with costs, and the period that a run of them in virtual time has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from steptrace.ir import Program
    from steptrace.ir.program import Node
    from steptrace.lower import Plan
    from steptrace.simulate import Durations, Run

Formula: TypeAlias = "Callable[[Plan, Durations, int], float]"
"""Gives the period of a plan; raises NoPeriodError where its lanes lock up."""

STRATA = ("lanes", "issue and done", "every", "guards")
"""The kinds of programs that are drawn, in turn."""

SHARED = "shared devices"
"""Programs with issue and done of which several lanes may send work to a device; every other draw of them."""

TRAIN_STEPS = "train steps"
"""A built-in program under random passes, with micro-batches, arms and stages."""

ONE_IN = 25
"""One of so many draws is a train step; each takes as long as many of the others."""

PASSES = (
    "async-checkpoint",
    "async-weight-sync",
    "defer-metrics",
    "fuse-update",
    "pipeline-micro-batches",
    "send-ahead",
    "stage-after-update",
    "stage-before-update",
    "stream-micro-batches",
    "take-ahead{depth=1}",
)
"""The passes that are drawn for train steps."""

STEPS = (32, 96, 320, 960)
"""How long runs are, until one has settled."""

TURNS = 12
"""Runs of devices that several lanes send work to are made longer by so many turns of their cadences, and again."""


@dataclass
class Tally:
    """What was found.

    Attributes:
      programs: how many schedules were looked at.
      deadlocks: those whose run locked up.
      disagreements: those of which run and graph do not say the same about that.
      undecided: those of which the graph says that they do not come to repeat themselves: not compared.
      unsettled: those whose longest run did not come to repeat itself, and was not compared.
      max_relative_error: the largest difference between period and run, as a share of the run's.
      worst: the schedule of that difference, as text.
      by_stratum: how many of each.
    """

    programs: int = 0
    deadlocks: int = 0
    disagreements: int = 0
    undecided: int = 0
    unsettled: int = 0
    max_relative_error: float = 0.0
    worst: str = ""
    by_stratum: dict[str, int] = field(default_factory=dict)

    def add(self, other: Tally) -> None:
        """Add what was found of other schedules."""
        for name in ("programs", "deadlocks", "disagreements", "undecided", "unsettled"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        if other.max_relative_error > self.max_relative_error:
            self.max_relative_error, self.worst = other.max_relative_error, other.worst
        for stratum, count in other.by_stratum.items():
            self.by_stratum[stratum] = self.by_stratum.get(stratum, 0) + count


def exact(plan: Plan, durations: Durations, micro_batches: int) -> float:
    """The period as the package has it."""
    from steptrace.cost import period_of

    return period_of(plan, durations, micro_batches=micro_batches).seconds


def measure(seed: int, numbers: Iterable[int], formula: Formula = exact) -> Tally:
    """Look at the random schedules of a seed with these numbers."""
    tally = Tally()
    for number in numbers:
        rng = Random(f"{seed} {number}")
        stratum = stratum_of(number)
        drawn = None
        while drawn is None:
            drawn = drawn_train_step(rng) if stratum == TRAIN_STEPS else drawn_schedule(rng, stratum)
        tally.programs += 1
        tally.by_stratum[stratum] = tally.by_stratum.get(stratum, 0) + 1
        program, plan = drawn
        compare(program, plan, drawn_costs(rng, program), rng.randint(1, 3), formula, tally)
    return tally


def stratum_of(number: int) -> str:
    """What the draw of a number is of."""
    if number % ONE_IN == ONE_IN - 1:
        return TRAIN_STEPS
    stratum = STRATA[number % len(STRATA)]
    return SHARED if stratum == "issue and done" and number // len(STRATA) % 2 else stratum


def compare(
    program: Program, plan: Plan, durations: Durations, micro_batches: int, formula: Formula, tally: Tally
) -> None:
    """Compare the period of one schedule with its run."""
    from steptrace.check import edges_of, find_cycle, reference_of
    from steptrace.diag.cost import NoPeriodError, NoRepetitionError
    from steptrace.diag.simulation import SimulatedDeadlockError
    from steptrace.ir.printer import print_program

    reference = program if plan.source is None else reference_of(program, plan.source.program)
    locks = bool(find_cycle(program, edges_of(reference, program)))
    try:
        period: float | None = formula(plan, durations, micro_batches)
    except NoRepetitionError:
        tally.undecided += 1
        tally.disagreements += locks
        return
    except NoPeriodError:
        period = None
    try:
        seconds = measured(plan, durations, micro_batches)
    except SimulatedDeadlockError:
        tally.deadlocks += 1
        tally.disagreements += period is not None or not locks
        return
    if period is None or locks:
        tally.disagreements += 1
        return
    if seconds is None:
        tally.unsettled += 1
        return
    error = abs(period - seconds) / max(seconds, 1e-300) if period != seconds else 0.0
    if error > tally.max_relative_error:
        tally.max_relative_error, tally.worst = error, print_program(program)


def drawn_schedule(rng: Random, stratum: str) -> tuple[Program, Plan] | None:
    """A schedule whose lanes keep the order of their own ops, and its plan; None where the draw is none."""
    from steptrace.check import broken, edges_of
    from steptrace.diag.base import SteptraceError
    from steptrace.lower import lower
    from steptrace.testing.random_programs import random_program
    from steptrace.testing.random_schedules import moves_of

    shares = stratum == SHARED
    stratum = "issue and done" if shares else stratum
    source = random_program(rng, stratum)
    moves = moves_of(stratum)
    program = source
    for _ in range(rng.randint(3, 12)):
        moved = rng.choice(moves)(rng, program)
        moved = moved if shares else on_one_lane_each(moved)
        try:
            kept = next(broken(moved, edges_of(source, moved)), None) is None
        except SteptraceError:
            continue
        if kept:
            program = moved
    try:
        return program, lower(program, source=source)
    except SteptraceError:
        return None


def drawn_train_step(rng: Random) -> tuple[Program, Plan] | None:
    """A built-in program under random passes, and its plan."""
    from steptrace.lang.reference import resolve
    from steptrace.lower import lower
    from steptrace.passes import run_pipeline

    name = rng.choice(("grpo", "rloo", "dr_grpo", "grpo_stream"))
    source = resolve(f"{name}{{staleness={rng.choice((0, 1, 1, 2))},save_every={rng.choice((1, 2, 3))}}}")
    passes = rng.sample(PASSES, rng.randint(1, 5))
    named = rng.choice(("pipelined-boundary", "pipelined-boundary-unstaged", "async-everything", ",".join(passes)))
    schedule = run_pipeline(source, named).schedule
    if schedule.program == source:
        return None
    return schedule.program, lower(schedule.program, source=schedule.source)


def drawn_costs(rng: Random, program: Program) -> Durations:
    """Whole numbers of seconds, so that a run settles soon and sums are exact."""
    from steptrace.ir import kinds_of, ops_of
    from steptrace.simulate import Cost, Durations

    kinds = kinds_of(program)
    lanes = {op.lane for op in ops_of(program.body) if kinds[op.kind].device}
    costs = {}
    for op in ops_of(program.body):
        ship = rng.choice((0, 0, 1, 4)) if len(lanes) == 1 and kinds[op.kind].device else 0
        costs[op.id] = Cost(float(rng.randint(0, 6)), float(rng.choice((0, 1, 2, 5, 9))), float(ship))
    return Durations(costs)


def measured(plan: Plan, durations: Durations, micro_batches: int) -> float | None:
    """Seconds a step of runs that come to repeat themselves, None when the longest do not."""
    from steptrace.cost.period import cadence_of
    from steptrace.simulate import simulate

    cadence = cadence_of(plan)
    for steps in STEPS:
        run = simulate(plan, durations, micro_batches=micro_batches, steps=steps)
        several = of_several_lanes(run)
        seconds = settled(run, cadence, steps - plan.ahead - 4, without=several)
        if several and seconds is not None:
            more = TURNS * cadence
            longer = (
                simulate(plan, durations, micro_batches=micro_batches, steps=steps + at * more) for at in (1, 2, 3)
            )
            lasted = lasts([run, *longer], several, more)
            seconds = None if lasted is None else max(seconds, lasted)
        if seconds is not None:
            return seconds
    return None


def of_several_lanes(run: Run) -> frozenset[str]:
    """The devices that several lanes of a run sent work to."""
    lane_of = {(event.op, event.step, event.micro): event.lane for event in run.events}
    lanes: dict[str, set[str]] = {}
    for span in run.spans:
        lanes.setdefault(span.device, set()).add(lane_of[span.op, span.step, span.micro])
    return frozenset(device for device, mine in lanes.items() if len(mine) > 1)


def lasts(runs: Sequence[Run], devices: Set[str], more: int) -> float | None:
    """Seconds by which devices end later for each step that a run is longer, each ``more`` steps longer than the last.

    None while that still changes. How far a lane is ahead within a run has no part in it: when all is sent and done, it
    is.
    """
    ends = [max(span.end for span in run.spans if span.device in devices) for run in runs]
    grown = [later - end for end, later in pairwise(ends)]
    return grown[0] / more if max(grown) - min(grown) <= 1e-9 * max(1.0, *ends) else None


def settled(run: Run, cadence: int, end: int, *, without: Set[str] = frozenset()) -> float | None:
    """Seconds a step in the steps before ``end``, once they repeat themselves; None when they do not.

    What ops have done on the devices ``without`` is left out; that their lanes have called them is not.
    """
    done: dict[str, dict[int, float]] = {}
    sent = {(span.op, span.step, span.micro) for span in run.spans if span.device in without}
    for event in run.events:
        mine = done.setdefault(event.op, {})
        mine[event.step] = max(
            mine.get(event.step, 0.0), event.end if (event.op, event.step, event.micro) in sent else event.done
        )
    for turn in range(cadence, end // 4, cadence):
        rates = [_rate(mine, turn, end) for mine in done.values()]
        if all(rate is not None for rate in rates):
            return max((rate for rate in rates if rate is not None), default=0.0)
    return None


def _rate(mine: dict[int, float], turn: int, end: int) -> float | None:
    """Seconds a step at which an op advances, if it is the same over three turns."""
    steps = [step for step in range(end - 3 * turn, end) if step in mine and step - turn in mine]
    grown = [mine[step] - mine[step - turn] for step in steps]
    if not grown:
        return 0.0
    return grown[0] / turn if max(grown) - min(grown) <= 1e-9 * max(1.0, *mine.values()) else None


def on_one_lane_each(program: Program) -> Program:
    """Lets each device be sent work by one lane only: the order in which it serves several depends on the time."""
    from steptrace.ir import Loop, kinds_of, ops_of

    kinds = kinds_of(program)
    lanes: dict[str, str] = {}
    for op in ops_of(program.body):
        lanes.setdefault(kinds[op.kind].device, op.lane)

    def placed(node: Node) -> Node:
        if isinstance(node, Loop):
            return replace(node, body=tuple(map(placed, node.body)))
        device = kinds[node.kind].device
        return replace(node, lane=lanes[device]) if device else node

    return replace(program, body=tuple(map(placed, program.body)))
