"""What follows from a condition, against truth tables over steps and rounds that are counted out."""

from itertools import product

import pytest

from steptrace.ir import ALWAYS, And, Every, First, Flag, Has, Last, MicroIs, Not, Or, Predicate
from steptrace.ir.verify.conditions import MOST_FACTS, exclusive, facts_of, implies, rewritten

A, B = Flag("a"), Flag("b")
SOME = (
    ALWAYS,
    A,
    B,
    Not(A),
    And((A, B)),
    Or((A, B)),
    First(),
    MicroIs(0),
    MicroIs(1),
    Last(),
    Every(2),
    Every(4),
    Every(3),
)


def true(predicate: Predicate, step: int, round_: int, rounds: int, flags: dict[str, bool]) -> bool:
    """A condition in one instance, straight from its definition."""
    match predicate:
        case Flag(name):
            return flags[name]
        case Not(term):
            return not true(term, step, round_, rounds, flags)
        case And(terms):
            return all(true(term, step, round_, rounds, flags) for term in terms)
        case Or(terms):
            return any(true(term, step, round_, rounds, flags) for term in terms)
        case Every(period):
            return (step + 1) % period == 0
        case First():
            return round_ == 0
        case MicroIs(index):
            return round_ == index
        case Last():
            return round_ == rounds - 1
    return predicate == ALWAYS


def instances():
    """Every instance of steps 0 to 11 with one to three rounds, for each truth of two flags."""
    for step, rounds, a, b in product(range(12), (1, 2, 3), (True, False), (True, False)):
        for round_ in range(rounds):
            yield step, round_, rounds, {"a": a, "b": b}


@pytest.mark.parametrize(("given", "wanted"), list(product(SOME, SOME)), ids=str)
def test_implication_agrees_with_instances_counted_out(given: Predicate, wanted: Predicate) -> None:
    counted = all(true(wanted, *instance) for instance in instances() if true(given, *instance))
    assert implies(given, (wanted,)) is counted


def test_one_of_several_may_hold() -> None:
    assert implies(ALWAYS, (A, Not(A)))
    assert not implies(ALWAYS, (A, B))


def test_arms_are_exclusive() -> None:
    assert exclusive(A, Not(A))
    assert exclusive(And((A, B)), And((Not(A), B)))
    assert exclusive(MicroIs(1), First())
    assert not exclusive(A, B)


def test_beyond_the_most_facts_only_what_is_spelled_out_follows() -> None:
    many = tuple(Has(f"c{index}") for index in range(MOST_FACTS + 2))
    assert implies(And(many), (And(many[:3]),))
    assert not implies(And(many), (Or((A, many[0])),))


def test_first_is_the_fact_that_the_round_is_0() -> None:
    assert facts_of(And((First(), MicroIs(0), Not(Or((A, Last())))))) == (MicroIs(0), A, Last())


def test_known_flags_are_put_in() -> None:
    assert rewritten(And((A, Not(Or((B, Every(2)))))), {"a": Last()}) == And((Last(), Not(Or((B, Every(2))))))
