"""Random schedules: the checker accepts none that the judge finds different; and a checker with a gap does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from steptrace.check import Edge, EdgeKind, broken, edges_of, find_cycle, places_of, waits_of
from steptrace.diag import SteptraceError
from steptrace.ir import Flag, Given, Not, Op, OpKind, Origin, Program, Resource, ResourceKind, Result, Type
from steptrace.testing.overlap import Wait
from steptrace.testing.soundness import Checker, Tally, as_wait, check, trial
from steptrace_tools.bench.soundness import figures, measure

PAIRS = 2500
"""Enough for every stratum to be seen some hundred times."""


@pytest.fixture(scope="module")
def tally() -> Tally:
    return measure(2, pairs=PAIRS)


def test_nothing_is_accepted_that_is_not_equal(tally: Tally):
    assert tally.pairs == PAIRS
    assert (tally.unsound, tally.examples) == (0, [])


def test_at_least_a_third_is_accepted_and_half_stand_on_a_walk(tally: Tally):
    assert tally.accepted > 0.3 * PAIRS
    assert 0.4 * PAIRS < tally.legal < 0.6 * PAIRS
    assert tally.legal + tally.edits == PAIRS


def test_few_of_the_refused_are_equal_and_each_has_its_reason(tally: Tally):
    assert all(stratum.share <= 0.03 for stratum in tally.strata.values())
    assert tally.reasons.total() == tally.over_refused
    assert "no edge is broken" not in tally.reasons


def test_a_dropped_wait_shows_unless_another_implies_it(tally: Tally):
    assert tally.dropped > 50
    assert tally.implied < 0.5 * tally.dropped


def test_an_arm_of_a_choice_follows_the_other_arm_of_the_step_before():
    kinds = (
        OpKind("look", results=(Given("f", "flag"),), user=True),
        *(OpKind(name, reads=("s",), writes=("s",), user=True) for name in ("yes", "no")),
    )
    body = (
        Op("look", "look", results=(Result("f", Type("flag")),)),
        Op("yes", "yes", when=Flag("f"), origin=Origin("choice", "yes")),
        Op("no", "no", when=Not(Flag("f")), origin=Origin("choice", "no")),
    )
    found = edges_of(Program("choice", resources=(Resource("s", ResourceKind.STATE),), kinds=kinds, body=body))
    joined = {(edge.before, edge.after, edge.distance) for edge in found if edge.what == "s"}
    assert joined == {("yes", "yes", 1), ("yes", "no", 1), ("no", "yes", 1), ("no", "no", 1)}


def test_the_same_seed_and_number_of_pairs_gives_the_same_counts():
    once = figures(measure(3, pairs=250), 3, 0.0)
    assert figures(measure(3, pairs=250, jobs=2), 3, 0.0) == once
    assert figures(measure(4, pairs=250), 3, 0.0) != once


def with_edges(keep: Callable[[Edge], bool]) -> Checker:
    """A checker that has forgotten the other edges, and their waits."""

    def checker(schedule: Program, reference: Program) -> tuple[Wait, ...] | None:
        edges = tuple(edge for edge in edges_of(reference) if keep(edge))
        try:
            places_of(schedule)
        except SteptraceError:
            return None
        if any(broken(schedule, edges)) or find_cycle(schedule, edges):
            return None
        return tuple(as_wait(wait.edge, bool(wait.device)) for wait in waits_of(schedule, reference) if keep(wait.edge))

    return checker


def done_as_issue(schedule: Program, reference: Program) -> tuple[Wait, ...] | None:
    """A checker that takes the return of a call for the end of its work."""
    waits = check(schedule, reference)
    return waits and tuple(wait._replace(done=False) for wait in waits)


def one_wait_less(schedule: Program, reference: Program) -> tuple[Wait, ...] | None:
    """A checker that loses a wait."""
    waits = check(schedule, reference)
    return waits and waits[1:]


def no_lock_up(schedule: Program, reference: Program) -> tuple[Wait, ...] | None:
    """A checker that does not ask whether the lanes can wait for one another for ever."""
    edges = edges_of(reference)
    if any(broken(schedule, edges)):
        return None
    return tuple(as_wait(wait.edge, bool(wait.device)) for wait in waits_of(schedule, reference))


GAPS = {
    "a read may be overwritten too early": with_edges(lambda edge: edge.kind is not EdgeKind.WAR),
    "a read may come too early": with_edges(lambda edge: edge.kind is not EdgeKind.RAW),
    "writes may change places": with_edges(lambda edge: edge.kind is not EdgeKind.WAW),
    "a channel may be out of order": with_edges(lambda edge: edge.kind is not EdgeKind.CHANNEL),
    "a value may be used before it is made": with_edges(lambda edge: edge.kind is not EdgeKind.VALUE),
    "a queue may be emptied too early": with_edges(lambda edge: edge.kind is not EdgeKind.FIFO),
    "a capacity may be exceeded": with_edges(lambda edge: edge.kind is not EdgeKind.CAPACITY),
    "steps do not follow one another": with_edges(lambda edge: edge.distance != 1),
    "micro-batches do not follow one another": with_edges(lambda edge: not edge.micro),
    "done is taken for issue": done_as_issue,
    "a wait is lost": one_wait_less,
    "lanes may lock up": no_lock_up,
}


@pytest.mark.parametrize("gap", GAPS)
def test_control_a_checker_with_a_gap_is_caught(gap: str):
    pairs = 0
    for number in range(200):
        tally = trial(7, number, checker=GAPS[gap])
        pairs += tally.pairs
        if tally.unsound:
            break
    assert tally.unsound, f"{pairs} pairs and nothing seen"
    assert tally.examples
    assert pairs < 5000
