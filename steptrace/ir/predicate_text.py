"""Reads conditions: ``when(every 10 and not %late)``."""

from __future__ import annotations

from steptrace.ir.predicate import ALWAYS, And, Every, First, Flag, Has, Last, MicroIs, Not, Or, Predicate
from steptrace.ir.reader import Reader

_ATOMS = "a condition: `first`, `last`, `m == 0`, `every 10`, `has(...)`, `%flag`, `not`, `always` or `(`"


def read_predicate(reader: Reader) -> Predicate:
    """A condition. ``and`` binds tighter than ``or``, ``not`` tighter than both; parentheses are kept as they are."""
    terms = [_conjunction(reader)]
    while reader.accept("or"):
        terms.append(_conjunction(reader))
    return terms[0] if len(terms) == 1 else Or(tuple(terms))


def _conjunction(reader: Reader) -> Predicate:
    terms = [_atom(reader)]
    while reader.accept("and"):
        terms.append(_atom(reader))
    return terms[0] if len(terms) == 1 else And(tuple(terms))


def _atom(reader: Reader) -> Predicate:
    token = reader.next()
    if token.kind == "value":
        return Flag(token.text)
    match token.text if token.kind in ("name", "punct") else "":
        case "always":
            return ALWAYS
        case "first":
            return First()
        case "last":
            return Last()
        case "m":
            reader.expect("==")
            return MicroIs(reader.integer("the number of a micro-batch, from 0"))
        case "every":
            return _every(reader)
        case "has":
            reader.expect("(")
            capability = reader.take("name", "the name of a capability").text
            reader.expect(")")
            return Has(capability)
        case "not":
            with reader.inside(token):
                return Not(_atom(reader))
        case "(":
            with reader.inside(token):
                inner = read_predicate(reader)
            if not reader.at(")"):
                reader.fail("`and`, `or` or `)`")
            reader.next()
            return inner
    return reader.fail(_ATOMS, token)


def _every(reader: Reader) -> Predicate:
    token = reader.token
    period = reader.integer("a number of steps, at least 1")
    return Every(period) if period else reader.fail("a number of steps, at least 1", token)
