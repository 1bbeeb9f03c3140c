"""Which steps there are: known to every lane by itself, so that none waits for another to learn it."""

from __future__ import annotations

import threading

from steptrace.ir import Always, And, Every, Has, Not, Op, Or, Predicate, flags_of
from steptrace.run.data.cursor import DataCursor
from steptrace.run.dispatching import drawn_by
from steptrace.run.session import Session

_KEPT = 256


class Horizon:
    """Which steps exist, from a first one on: a prefix, ended by the number of steps asked for or by the data.

    How many prompts a step draws depends on the step alone, so where the data ends is computed ahead. Where it
    depends on a flag, or on which groups are kept, the run goes in program order, and the data cursor itself is asked
    when a step is about to begin.

    Args:
      run: the session, at the beginning of step ``first``.
      first: the first step.
      limit: the step not to begin; None for no limit.
    """

    def __init__(self, run: Session, first: int, limit: int | None) -> None:
        self._run = run
        self._limit = limit
        self._known = first
        self._position = run.cursor.position
        self._ended = False
        self._behind: dict[int, int] = {}
        self._looking = threading.Lock()
        self._pure = not any(flags_of(op.when) or op.attr("keep") for op in run.dispatches)

    def exists(self, step: int) -> bool:
        """Whether there is a step ``step``, given that those before it were asked about or exist."""
        if self._limit is not None and step >= self._limit:
            return False
        if not self._pure:
            return self._run.has_prompts(self._drawn(step), self._run.cursor.position)
        if step < self._known:
            return True
        with self._looking:
            while not self._ended and self._known <= step:
                drawn = self._drawn(self._known)
                if self._run.has_prompts(drawn, self._position):
                    self._position = self._run.position_after(self._position, drawn)
                    self._behind[self._known] = self._position
                    self._behind.pop(self._known - _KEPT, None)
                    self._known += 1
                else:
                    self._ended = True
            return step < self._known

    def behind(self, step: int) -> DataCursor | None:
        """The data cursor behind a step, one of the last few; None where only the run itself knows it."""
        position = self._behind.get(step)
        return None if position is None else DataCursor(position)

    def _drawn(self, step: int) -> int:
        return sum(drawn_by(op) for op in self._run.dispatches if self._runs(op, step))

    def _runs(self, op: Op, step: int) -> bool:
        return _holds(op.when, step, self._run.capabilities)


def _holds(predicate: Predicate, step: int, capabilities: frozenset[str]) -> bool:
    """A condition on the step alone; flags are false before a step has begun."""
    match predicate:
        case Always():
            return True
        case Every(period):
            return (step + 1) % period == 0
        case Has(capability):
            return capability in capabilities
        case Not(term):
            return not _holds(term, step, capabilities)
        case And(terms):
            return all(_holds(term, step, capabilities) for term in terms)
        case Or(terms):
            return any(_holds(term, step, capabilities) for term in terms)
        case _:
            return False
