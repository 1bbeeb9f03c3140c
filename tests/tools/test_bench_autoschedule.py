"""`steptrace bench autoschedule`: all legal schedules of small programs, and searches that are worse on purpose."""

from __future__ import annotations

from random import Random

import pytest

from steptrace.check.schedule import problems
from steptrace.ir import Contract, Op, OpKind, Program, Resource, ResourceKind, ops_of
from steptrace.simulate import Cost, Durations
from steptrace.testing.exhaustive import all_schedules, legal_schedules
from steptrace_tools.bench.autoschedule import AHEAD, LANES, fastest, grpo, measure, small_program


def two(reads: tuple[str, ...] = ("y",)) -> Program:
    """Two ops with a state each; the second one reads what it is told to."""
    kinds = (
        OpKind("one", (), (), reads=("x",), writes=("x",), user=True),
        OpKind("two", (), (), reads=reads, writes=("y",), user=True),
    )
    states = tuple(Resource(name, ResourceKind.STATE) for name in ("x", "y"))
    return Program("two", (), Contract(), states, kinds, body=(Op("one", "one"), Op("two", "two")))


def test_two_ops_have_as_many_schedules_as_counted_by_hand():
    source = two()
    # on one lane: two orders, times neither ahead, the first ahead, the second ahead; on two lanes: one
    assert len(list(all_schedules(source, LANES, AHEAD))) == 2 * 3 + 1
    assert len(list(legal_schedules(source, LANES, AHEAD))) == 2 * 3 + 1


def test_an_edge_leaves_fewer():
    source = two(("x", "y"))
    legal = [tuple((op.id, op.shift) for op in ops_of(one.body)) for one in legal_schedules(source, ("host",), AHEAD)]
    # one@k before two@k before one@k+1: in order, or turned by one step
    assert sorted(legal) == [(("one", 0), ("two", 0)), (("two", 0), ("one", 1))]


def test_the_fastest_of_two_ops_runs_them_side_by_side():
    durations = Durations({"one": Cost(3.0), "two": Cost(2.0)})
    assert fastest(two(), durations) == (3.0, 7)


def test_control_what_is_not_legal_is_left_out():
    program = small_program(Random(3), "lanes")
    every = list(all_schedules(program, LANES, AHEAD))
    legal = list(legal_schedules(program, LANES, AHEAD))
    assert 0 < len(legal) < len(every)
    assert all(next(problems(one, program), None) is None for one in legal[:20])
    assert len({tuple((op.id, op.lane, op.shift) for op in ops_of(one.body)) for one in every}) == len(every)


@pytest.mark.slow
def test_the_search_finds_the_fastest_of_small_programs():
    tally = measure(1, range(12))
    assert tally.programs == 12
    assert tally.improved > 5
    assert tally.optimal >= 11  # of so few; the command counts many
    assert tally.below_bound == 0


@pytest.mark.slow
def test_control_a_search_that_gives_up_at_once_does_not():
    tally = measure(1, range(6), tries=1)
    assert tally.optimal < 0.95 * tally.programs
    assert tally.worst > 1.05
    assert tally.misses


@pytest.mark.slow
def test_grpo_is_as_fast_as_can_be_without_a_hint():
    found = grpo()
    assert found["period_s"] <= found["hand_ordered_s"]
    assert 1 <= found["over_bound"] <= 1.01
    assert found["stopped"].startswith("bound reached")
