"""Schedules of any rows on the lanes of a real run: ops that only say when they run, judged by what they touch."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from random import Random
from typing import Any

from steptrace.ir import ALWAYS, Program
from steptrace.ir.program import Carry
from steptrace.lower import Hold, Plan, lower
from steptrace.run.binding import Parts
from steptrace.run.executor import Executor
from steptrace.run.session import Session
from steptrace.testing.facts import Facts, bits
from steptrace.testing.interpreter import Seen, Terms, interpret, source_events
from steptrace.testing.runs import Run

SLOW_S = 0.003
"""How long an op lasts that is made slow, in seconds."""

DRAWS = 6
"""Moments of each op that are drawn to stand for it."""


class Log:
    """When each instance began and ended, in ticks of one clock of all lanes."""

    def __init__(self, facts: Facts, run: Run, slow: frozenset[str]) -> None:
        self.facts, self.run, self.slow = facts, run, slow
        self.spans: dict[int, tuple[int, int]] = {}
        self._clock = 0
        self._ticking = threading.Lock()

    def tick(self) -> int:
        with self._ticking:
            self._clock += 1
            return self._clock

    def __call__(self, session: Session, at: Any, *operands: Any) -> tuple[Any, ...]:
        key = (at.op.id, at.step, at.rounds)
        begin = self.tick()
        time.sleep(SLOW_S if at.op.id in self.slow else 0)
        self.spans[self.run.index[key]] = (begin, self.tick())
        return tuple(
            self.run.flag(key, self.facts.flags, result.name) if result.type.base == "flag" else 0.0
            for result in at.op.results
        )


def carried(program: Program) -> dict[str, bool]:
    """The values that a step reads of the one before, and whether each is made in every step."""
    made = {result.name: op.when == ALWAYS for op in program.ops() for result in op.results}
    return {use.name: made[use.name] for op in program.ops() for use in op.args if use.step}


def ran(schedule: Program, reference: Program, run: Run, facts: Facts, slow=frozenset(), without: Hold | None = None):
    """The spans of the instances that ran, by number."""
    plan = lower(schedule, source=reference)
    if without is not None:
        plan = replace(plan, holds={id: tuple(h for h in holds if h != without) for id, holds in plan.holds.items()})
    carries = tuple(Carry(name, 0.0) for name in sorted(carried(reference)))
    plan = replace(plan, program=replace(plan.program, carries=carries))
    log = Log(facts, run, slow)
    parts = Parts(ops=dict.fromkeys({op.kind for op in schedule.ops()}, log))
    session = Session(plan, parts, seed=0, epochs=None, out=None)
    assert Executor(session, stall_s=20.0).steps(0, len(run.counts)) == len(run.counts)
    return log.spans


def holds_of(plan: Plan) -> list[tuple[str, Hold]]:
    """What waits for what, over lanes."""
    return [(id, hold) for id, holds in sorted(plan.holds.items()) for hold in holds]


def seen_in(run: Run, facts: Facts, spans: dict[int, tuple[int, int]], terms: Terms, rng: Random) -> list[Seen]:
    """What is seen if each instance happens at one moment of its span, for some draws of the moments.

    What did not run is put behind all that did: it touches nothing.
    """
    found = []
    for draw in range(DRAWS):
        moments = {
            at: begin if draw == 0 else end if draw == 1 else rng.uniform(begin, end)
            for at, (begin, end) in spans.items()
        }
        order = sorted(moments, key=moments.__getitem__)
        rest = [at for at in range(len(run.keys)) if at not in spans]
        found.append(replace(interpret(run, facts, [*order, *rest], terms), overfull=False))
    return found


def reference_of(run: Run, facts: Facts, terms: Terms) -> Seen:
    """What is seen in the order of the source."""
    return replace(interpret(run, facts, source_events(run), terms), overfull=False)


def should_run(run: Run, facts: Facts) -> set[int]:
    """The instances whose condition is true."""
    return set(bits(facts.ran))
