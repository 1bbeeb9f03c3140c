"""Which instances of an op run in every run of a program, whatever its flags by time and its target decide."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from steptrace.cost.period import RARE
from steptrace.ir import Always, And, Every, First, Flag, Has, Last, MicroIs, Not, Or, Predicate


@dataclass(frozen=True, slots=True)
class At:
    """An instance.

    Attributes:
      step: its step.
      micro: its micro-batch; None where the micro-batches of a step are not counted through: outside the loop over
        them, and where that stands in loops over epochs or mini-batches.
      last: whether that is the step's last.
      open: flags that are decided by the time; the others are true, as they are for periods.
    """

    step: int
    micro: int | None
    last: bool
    open: Set[str]


def runs_surely(predicate: Predicate, at: At) -> bool:
    """Whether an instance is sure to run: what runs less often than every so many steps counts as never."""
    return _truth(predicate, at) is True


def _truth(predicate: Predicate, at: At) -> bool | None:
    """Whether a condition is true, None where nobody knows."""
    match predicate:
        case Always():
            return True
        case Every(period):
            return period <= RARE and (at.step + 1) % period == 0
        case First() | Last() | MicroIs() if at.micro is None:
            return None
        case First():
            return at.micro == 0
        case Last():
            return at.last
        case MicroIs(index):
            return at.micro == index
        case Has():
            return None
        case Flag(name):
            return None if name in at.open else True
        case Not(term):
            inner = _truth(term, at)
            return None if inner is None else not inner
        case And(terms) | Or(terms):
            decided = isinstance(predicate, Or)
            found = [_truth(term, at) for term in terms]
            return decided if decided in found else None if None in found else not decided
