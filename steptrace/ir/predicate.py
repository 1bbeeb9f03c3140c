"""The closed language of conditions under which an op runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Always:
    """True."""

    def __str__(self) -> str:
        return "always"


@dataclass(frozen=True, slots=True)
class First:
    """True for the first micro-batch of a step."""

    def __str__(self) -> str:
        return "first"


@dataclass(frozen=True, slots=True)
class Last:
    """True for the last micro-batch of a step."""

    def __str__(self) -> str:
        return "last"


@dataclass(frozen=True, slots=True)
class MicroIs:
    """True for micro-batch ``index`` of a step (from 0)."""

    index: int

    def __str__(self) -> str:
        return f"m == {self.index}"


@dataclass(frozen=True, slots=True)
class Every:
    """True for steps k with ``(k + 1) % period == 0``: the last of each ``period`` steps."""

    period: int

    def __str__(self) -> str:
        return f"every {self.period}"


@dataclass(frozen=True, slots=True)
class Has:
    """True when the target reports the capability."""

    capability: str

    def __str__(self) -> str:
        return f"has({self.capability})"


@dataclass(frozen=True, slots=True)
class Flag:
    """True when the flag value ``%name`` is true."""

    name: str

    def __str__(self) -> str:
        return f"%{self.name}"


@dataclass(frozen=True, slots=True)
class Not:
    """True when ``term`` is false."""

    term: Predicate

    def __str__(self) -> str:
        return f"not {_atom(self.term)}"


@dataclass(frozen=True, slots=True)
class And:
    """True when all terms are."""

    terms: tuple[Predicate, ...]

    def __str__(self) -> str:
        return " and ".join(_atom(term) for term in self.terms)


@dataclass(frozen=True, slots=True)
class Or:
    """True when one of the terms is."""

    terms: tuple[Predicate, ...]

    def __str__(self) -> str:
        return " or ".join(_atom(term) for term in self.terms)


Predicate: TypeAlias = Always | First | Last | MicroIs | Every | Has | Flag | Not | And | Or

ALWAYS = Always()


def _atom(term: Predicate) -> str:
    return f"({term})" if isinstance(term, And | Or) else str(term)


def conjunction(*terms: Predicate) -> Predicate:
    """The conjunction in normal form: flat, without ``always`` and repetitions, in the order given."""
    flat: list[Predicate] = []
    for term in terms:
        for part in term.terms if isinstance(term, And) else (term,):
            if part != ALWAYS and part not in flat:
                flat.append(part)
    if not flat:
        return ALWAYS
    return flat[0] if len(flat) == 1 else And(tuple(flat))


def flags_of(predicate: Predicate) -> tuple[str, ...]:
    """Names of the flag values a predicate reads, in order, each once."""
    match predicate:
        case Flag(name):
            return (name,)
        case Not(term):
            return flags_of(term)
        case And(terms) | Or(terms):
            return tuple(dict.fromkeys(name for term in terms for name in flags_of(term)))
        case _:
            return ()
