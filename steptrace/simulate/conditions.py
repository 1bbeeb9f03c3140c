"""Whether the condition of an instance is true."""

from __future__ import annotations

from collections.abc import Set
from typing import Any, Protocol

from steptrace.ir import Always, And, Every, First, Flag, Has, Last, MicroIs, Not, Or, Predicate


class Flagged(Protocol):
    """Where conditions look: a run in virtual time, or a walk without a clock."""

    @property
    def able(self) -> Set[str]:
        """What the target and the trainer can do."""

    def value(self, name: str, step: int, micro: int) -> Any:
        """A value, with what it is as ``it``; None when it is not made."""


def holds(predicate: Predicate, state: Flagged, step: int, micro: int, last: bool) -> bool:
    """Whether it is, in a step and a round.

    Args:
      predicate: the condition.
      state: where the flags are.
      step: the step.
      micro: the micro-batch, 0 outside loops over them.
      last: whether that is the step's last.
    """
    match predicate:
        case Always():
            return True
        case First():
            return micro == 0
        case Last():
            return last
        case MicroIs(index):
            return micro == index
        case Every(period):
            return (step + 1) % period == 0
        case Has(capability):
            return capability in state.able
        case Flag(name):
            value = state.value(name, step, micro)
            return value is not None and bool(value.it)
        case Not(term):
            return not holds(term, state, step, micro, last)
        case And(terms):
            return all(holds(term, state, step, micro, last) for term in terms)
        case Or(terms):
            return any(holds(term, state, step, micro, last) for term in terms)
