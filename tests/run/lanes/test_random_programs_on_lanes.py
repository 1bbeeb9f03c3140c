"""Random programs of any rows under random schedules that the checks accept, on the lanes of a real run.

What the run did is what the source does: the same instances, and what each of them reads and writes, cell by cell. Rows
whose work is done later than their call, and loops without an op that makes micro-batches, are no programs that can be
bound; those orders are judged in virtual time.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from logged_lanes import carried, holds_of, ran, reference_of, seen_in, should_run

from steptrace.diag import SteptraceError
from steptrace.ir import Program
from steptrace.lower import lower
from steptrace.testing.interpreter import Terms
from steptrace.testing.random_programs import random_program
from steptrace.testing.random_schedules import moves_of
from steptrace.testing.runs import source_of
from steptrace.testing.soundness import check

STRATA = ("single lane", "lanes", "guards", "every")
STEPS = 6


def drawn(number: int) -> tuple[str, Program, Program]:
    """A stratum, a random program, and a schedule of it: the end of a walk of accepted moves."""
    stratum = STRATA[number % len(STRATA)]
    rng = Random(f"lanes/{number}")
    reference = schedule = random_program(rng, stratum)
    for _ in range(30):
        candidate = rng.choice(moves_of(stratum))(rng, schedule)
        if candidate != schedule and check(candidate, reference) is not None:
            schedule = candidate
    return stratum, reference, schedule


def trial(number: int, tally: Counter[str], *, without: bool = False) -> None:
    """Run one draw, with one wait left out if so asked; count what came of it."""
    stratum, reference, schedule = drawn(number)
    try:
        plan = lower(schedule, source=reference)
    except SteptraceError:
        tally["not lowered"] += 1
        return
    if not all(carried(reference).values()):
        tally["carries what not every step makes"] += 1
        return
    holds = holds_of(plan)
    if without and not holds:
        return
    rng = Random(f"run/{number}")
    run = source_of(reference).run((1,) * STEPS, 0)
    facts = rng.choice(run.facts)
    _, gone = rng.choice(holds) if without else ("", None)
    slow = frozenset([gone.before]) if gone else frozenset(op.id for op in schedule.ops() if rng.random() < 0.3)
    spans = ran(schedule, reference, run, facts, slow, gone)
    terms = Terms()
    wanted = reference_of(run, facts, terms)
    seen = seen_in(run, facts, spans, terms, rng)
    same = {*spans} == should_run(run, facts) and all(found == wanted for found in seen)
    tally["same" if same else "other"] += 1
    tally[stratum] += 1
    tally["over lanes"] += bool(holds)


def test_random_schedules_do_on_lanes_what_their_program_does():
    tally: Counter[str] = Counter()
    for number in range(40):
        trial(number, tally)
    assert tally["other"] == 0
    assert tally["same"] > 30
    assert tally["over lanes"] > 20
    assert all(tally[stratum] > 5 for stratum in STRATA)


@pytest.mark.slow
def test_many_random_schedules_do_on_lanes_what_their_program_does():
    tally: Counter[str] = Counter()
    for number in range(1000, 1250):
        trial(number, tally)
    assert tally["other"] == 0
    assert tally["same"] > 200


def test_control_a_wait_that_is_left_out_shows():
    tally: Counter[str] = Counter()
    for number in range(60):
        trial(number, tally, without=True)
        if tally["other"] >= 3:
            break
    assert tally["other"] >= 3, tally
