"""`steptrace bench autoschedule`: what the search finds, against every legal schedule of small random programs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from absl import flags

from ..command import Command
from ..table import aligned
from . import draws
from .period_draws import STRATA, drawn_costs

if TYPE_CHECKING:
    from steptrace.ir import Program
    from steptrace.motion import Schedule
    from steptrace.passes import Pass
    from steptrace.simulate import Durations

LANES = ("host", "packer")
"""The lanes that small programs are spread over."""

AHEAD = 1
"""How many steps ahead an op may run."""

MOST_OPS = 5
"""Larger programs have too many schedules to write all of them out."""

_BLOCK = 4
"""Programs that a worker takes at a time."""

_SAME = 1e-9
"""Periods that differ by less, as a share, are the same."""


@dataclass
class Tally:
    """What was found.

    Attributes:
      programs: how many programs were looked at.
      optimal: those of which the search found a schedule that none is faster than.
      improved: those of which some schedule is faster than the program as it is written.
      improved_optimal: those of these for which the search found it.
      worst: the largest period that was found, as a multiple of the least there is.
      below_bound: programs with a legal schedule that is faster than the bound: none, or the bound is wrong.
      legal: legal schedules, of all programs.
      stops: why searches stopped, with how many did so.
      misses: the numbers of the programs of which the fastest was not found.
    """

    programs: int = 0
    optimal: int = 0
    improved: int = 0
    improved_optimal: int = 0
    worst: float = 1.0
    below_bound: int = 0
    legal: int = 0
    stops: dict[str, int] = field(default_factory=dict)
    misses: list[int] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Add what was found of other programs."""
        for name in ("programs", "optimal", "improved", "improved_optimal", "below_bound", "legal"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.worst = max(self.worst, other.worst)
        self.misses += other.misses
        for stop, count in other.stops.items():
            self.stops[stop] = self.stops.get(stop, 0) + count


def _define(values: flags.FlagValues) -> None:
    draws.define(values, 100, "small random programs")


def _run(operands: list[str], values: flags.FlagValues) -> int:
    begin = time.monotonic()
    total = measured(values.seed, values.programs, values.jobs)
    found = outcome(total, values.seed, time.monotonic() - begin, grpo())
    print(json.dumps(found) if values.json else report(found))
    return int(found["optimal_share"] < 0.95 or total.below_bound > 0)


def measured(seed: int, programs: int, jobs: int) -> Tally:
    """Look at so many small random programs; what is found does not depend on the number of jobs."""
    return draws.spread(measure, seed, programs, jobs, block=_BLOCK, total=Tally())


def measure(seed: int, numbers: Iterable[int], *, tries: int = 400) -> Tally:
    """Look at the small random programs of a seed with these numbers; ``tries`` schedules of each are searched."""
    tally = Tally()
    for number in numbers:
        rng = Random(f"{seed} {number} small")
        program = small_program(rng, STRATA[number % len(STRATA)])
        compare(number, program, drawn_costs(rng, program), tally, tries)
    return tally


def small_program(rng: Random, stratum: str) -> Program:
    """A random program without loops of at most `MOST_OPS` ops, which can be lowered."""
    from steptrace.diag.base import SteptraceError
    from steptrace.ir import Op
    from steptrace.lower import lower
    from steptrace.testing.random_programs import random_program

    while True:
        program = random_program(rng, stratum)
        if len(program.body) > MOST_OPS or not all(isinstance(node, Op) for node in program.body):
            continue
        try:
            lower(program, source=program)
        except SteptraceError:
            continue
        return program


def compare(number: int, program: Program, durations: Durations, tally: Tally, tries: int) -> None:
    """Search for the fastest schedule of a program, and compare it with the fastest there is."""
    from steptrace.cost import bound_of
    from steptrace.motion import Schedule
    from steptrace.passes.search import Limits, search

    limits = Limits(tries=tries, patience=tries, ahead=AHEAD, lanes=LANES, passes=(), apply=_applied)
    found = search(Schedule.of(program), durations, micro_batches=1, limits=limits)
    assert found is not None, "nothing limits the memory"
    least, legal = fastest(program, durations)
    plain = period(program, program, durations)
    mine = found.judged.period.seconds
    optimal = mine <= least * (1 + _SAME)
    tally.programs += 1
    tally.legal += legal
    tally.optimal += optimal
    tally.stops[found.stop] = tally.stops.get(found.stop, 0) + 1
    tally.below_bound += least < bound_of(program, durations, micro_batches=1).seconds * (1 - _SAME)
    if plain is not None and least < plain * (1 - _SAME):
        tally.improved += 1
        tally.improved_optimal += optimal
    if not optimal:
        tally.misses.append(number)
        tally.worst = max(tally.worst, mine / least)


def fastest(program: Program, durations: Durations) -> tuple[float, int]:
    """The least period of all legal schedules of a program, and how many of them there are."""
    from steptrace.testing.exhaustive import legal_schedules

    periods = [period(one, program, durations) for one in legal_schedules(program, LANES, AHEAD)]
    return min(seconds for seconds in periods if seconds is not None), len(periods)


def period(program: Program, source: Program, durations: Durations) -> float | None:
    """The period of a schedule; None where it has none."""
    from steptrace.cost import period_of
    from steptrace.diag.base import SteptraceError
    from steptrace.lower import lower

    try:
        return period_of(lower(program, source=source), durations, micro_batches=1).seconds
    except SteptraceError:
        return None


def _applied(schedule: Schedule, pass_: Pass) -> Schedule:
    """A pass without what a whole train step is asked for, which small programs are not."""
    return pass_.run(schedule)


def grpo() -> dict[str, Any]:
    """What the search finds for GRPO with the costs of the cell, without a hint, and how long it takes."""
    from steptrace.cost import read_costs
    from steptrace.motion import Schedule
    from steptrace.passes.search import search

    from .cell import FILE, PROGRAM, periods, source

    costs, begin = read_costs(FILE), time.process_time()
    found = search(Schedule.of(source()), costs.covering(source()), micro_batches=costs.micro_batches or 1)
    seconds = time.process_time() - begin
    assert found is not None, "nothing limits the memory"
    return {
        "program": PROGRAM,
        "period_s": found.judged.period.seconds,
        "hand_ordered_s": periods(costs)["staged_before_s"],
        "bound_s": found.bound.seconds,
        "over_bound": found.judged.period.seconds / found.bound.seconds,
        "pipeline": found.pipeline,
        "stopped": found.why,
        "tried": found.tried,
        "cpu_s": round(seconds, 2),
    }


def outcome(total: Tally, seed: int, seconds: float, train_step: dict[str, Any]) -> dict[str, Any]:
    """The figures, for scripts."""
    return {
        "optimal_share": total.optimal / max(1, total.programs),
        "optimal_share_of_improved": total.improved_optimal / max(1, total.improved),
        "worst_over_optimum": total.worst,
        "programs": total.programs,
        "improved": total.improved,
        "below_bound": total.below_bound,
        "legal_schedules": total.legal,
        "stops": total.stops,
        "misses": total.misses,
        "seed": seed,
        "seconds": round(seconds, 1),
        "grpo": train_step,
    }


def report(found: dict[str, Any]) -> str:
    """The figures, to be read."""
    step = found["grpo"]
    rows = [
        ("programs", f"{found['programs']:,}, with {found['legal_schedules']:,} legal schedules in all"),
        ("fastest found", f"{found['optimal_share']:.1%} of them"),
        (
            "where one is faster than the program",
            f"{found['optimal_share_of_improved']:.1%} of {found['improved']:,}",
        ),
        ("worst", f"{found['worst_over_optimum']:.3f} times the least period there is"),
        ("faster than the bound", f"{found['below_bound']} programs"),
        ("stopped", ", ".join(f"{count} {stop}" for stop, count in found["stops"].items())),
        ("GRPO, the cell's costs", f"{step['period_s']:.3f} s, {step['over_bound']:.6f} x the bound"),
        ("", f"hand-ordered {step['hand_ordered_s']:.3f} s; {step['tried']} tried in {step['cpu_s']} s of CPU time"),
        ("", f"{step['pipeline']}"),
        ("", f"{step['stopped']}"),
    ]
    return aligned(rows)


COMMAND = Command(
    name="bench autoschedule",
    operands="",
    summary="What the search for the fastest schedule finds, against all legal schedules of small programs.",
    examples=(
        ("bench autoschedule", "a hundred small programs, and GRPO with the costs of a cell"),
        ("bench autoschedule --seed=4 --programs=400 --json", "for scripts; the same figures each time"),
    ),
    run=_run,
    define=_define,
    details="Every way to spread the ops of a program over two lanes, each order, and each choice of steps ahead is "
    "written out and judged, by code that the search does not use. It exits with 1 when the search finds the fastest "
    "for less than 95 % of the programs, or when a schedule is faster than the bound.",
)
