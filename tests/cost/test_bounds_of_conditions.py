"""Ops under conditions count in a bound where they are sure to run, and nowhere else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from steptrace.cost import bound_of, judged
from steptrace.ir import And, Every, First, Flag, Has, Last, Loop, MicroIs, Not, Or, Predicate, Program
from steptrace.lang.reference import resolve
from steptrace.motion import Schedule
from steptrace.simulate import Cost, Durations

COSTS = Durations({"ref_logps": Cost(0.0, 10.0), "log": Cost(10.0)})
"""The reference of a micro-batch takes 10 s, and a log too."""


def under(op: str, when: Predicate) -> Program:
    """GRPO, with an op of it under a condition."""
    source = resolve("grpo{staleness=1,save_every=1000000}")

    def visit(node):
        if isinstance(node, Loop):
            return replace(node, body=tuple(map(visit, node.body)))
        return replace(node, when=when) if node.id == op else node

    return replace(source, body=tuple(map(visit, source.body)))


@pytest.mark.parametrize(
    ("when", "runs"),
    [
        (First(), 1),
        (Last(), 1),
        (MicroIs(2), 1),
        (MicroIs(7), 0),
        (Not(First()), 3),
        (Or((First(), Last())), 2),
        (And((First(), Last())), 0),
        (And((Not(Every(2)), First())), 0.5),
        (Has("nonsense"), 0),
    ],
    ids=str,
)
def test_micro_batches_that_are_sure_to_run(when: Predicate, runs: float):
    assert bound_of(under("ref_logps", when), COSTS, micro_batches=4).seconds == max(10.0, runs * 10)


@pytest.mark.parametrize(
    ("when", "share"),
    [
        (Every(4), 1 / 4),
        (Not(Every(4)), 3 / 4),
        (And((Every(2), Not(Every(4)))), 1 / 4),
        (Or((Every(2), Every(3))), 4 / 6),
        (And((Every(2), Every(100))), 0),
        (Not(Every(1)), 0),
        (Flag("exists"), 1),
        (Not(Flag("exists")), 0),
    ],
    ids=str,
)
def test_steps_in_which_an_op_is_sure_to_run(when: Predicate, share: float):
    bound = bound_of(under("log", when), Durations({"log": Cost(10.0)}), micro_batches=4)
    assert bound.seconds == pytest.approx(10 * share)


@pytest.mark.parametrize("when", [First(), Last(), MicroIs(7), Not(First())], ids=str)
def test_no_bound_is_above_the_period_of_the_program_itself(when: Predicate):
    source = under("ref_logps", when)
    durations = Durations({"ref_logps": Cost(0.0, 10.0)})
    found = judged(Schedule.of(source), durations, micro_batches=4)
    assert bound_of(source, durations, micro_batches=4).seconds <= found.period.seconds


def test_control_without_a_condition_all_of_them_count():
    source = resolve("grpo{staleness=1,save_every=1000000}")
    assert bound_of(source, COSTS, micro_batches=4).seconds == 40.0
