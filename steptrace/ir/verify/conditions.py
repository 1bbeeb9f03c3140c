"""What follows from a condition: truth tables over the few facts it speaks of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product

from steptrace.ir.predicate import ALWAYS, And, Every, First, Flag, MicroIs, Not, Or, Predicate

MOST_FACTS = 8
"""Conditions that speak of more facts are not tabulated; the questions below then answer as if they were false."""


def facts_of(predicate: Predicate) -> tuple[Predicate, ...]:
    """The facts that a condition speaks of, in order, each once; ``first`` is the fact ``m == 0``."""
    match predicate:
        case Not(term):
            return facts_of(term)
        case And(terms) | Or(terms):
            return tuple(dict.fromkeys(fact for term in terms for fact in facts_of(term)))
        case First():
            return (MicroIs(0),)
    return () if predicate == ALWAYS else (predicate,)


def holds(predicate: Predicate, facts: Mapping[Predicate, bool]) -> bool:
    """Whether a condition is true under the facts it speaks of."""
    match predicate:
        case Not(term):
            return not holds(term, facts)
        case And(terms):
            return all(holds(term, facts) for term in terms)
        case Or(terms):
            return any(holds(term, facts) for term in terms)
        case First():
            return facts[MicroIs(0)]
    return predicate == ALWAYS or facts[predicate]


def tables(facts: tuple[Predicate, ...]) -> Iterator[dict[Predicate, bool]]:
    """Every consistent truth of facts, all true first: one ``m ==`` at most, ``every 10`` only with ``every 5``."""
    for values in product((True, False), repeat=len(facts)):
        table = dict(zip(facts, values, strict=True))
        true = [fact for fact, value in table.items() if value]
        if sum(isinstance(fact, MicroIs) for fact in true) <= 1 and not _broken_period(true, table):
            yield table


def _broken_period(true: list[Predicate], table: Mapping[Predicate, bool]) -> bool:
    """Whether a period is true and one that divides it is false."""
    false = [fact.period for fact, value in table.items() if isinstance(fact, Every) and not value]
    return any(isinstance(fact, Every) and fact.period % period == 0 for fact in true for period in false)


def implies(given: Predicate, wanted: tuple[Predicate, ...]) -> bool:
    """Whether one of ``wanted`` holds whenever ``given`` does."""
    if given in wanted or ALWAYS in wanted:
        return True
    facts = tuple(dict.fromkeys(fact for predicate in (given, *wanted) for fact in facts_of(predicate)))
    if len(facts) > MOST_FACTS:
        terms = given.terms if isinstance(given, And) else (given,)
        return any(set(need.terms if isinstance(need, And) else (need,)) <= set(terms) for need in wanted)
    return all(any(holds(need, table) for need in wanted) for table in tables(facts) if holds(given, table))


def exclusive(one: Predicate, other: Predicate) -> bool:
    """Whether two conditions are never true together."""
    return implies(one, (Not(other),))


def rewritten(predicate: Predicate, flags: Mapping[str, Predicate]) -> Predicate:
    """The condition with what is known about flags in their places."""
    match predicate:
        case Flag(name):
            return flags.get(name, predicate)
        case Not(term):
            return Not(rewritten(term, flags))
        case And(terms):
            return And(tuple(rewritten(term, flags) for term in terms))
        case Or(terms):
            return Or(tuple(rewritten(term, flags) for term in terms))
    return predicate
