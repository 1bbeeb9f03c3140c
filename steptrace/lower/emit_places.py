"""Where the values of an emitted loop are, and its conditions as Python."""

from __future__ import annotations

from dataclasses import dataclass, field

from steptrace.ir import (
    ALWAYS,
    Always,
    And,
    Every,
    First,
    Flag,
    Has,
    Last,
    MicroIs,
    Not,
    Or,
    Predicate,
    ops_of,
)
from steptrace.lower.plan import Call, Plan, Read, StreamPlan


@dataclass(frozen=True, slots=True)
class Around:
    """What stands around an op in the emitted text.

    Attributes:
      micro: the micro-batch that conditions ask about, as Python.
      last: whether it is the step's last, as Python.
      at: for each loop around it, outermost first, how many rounds it has made before, as Python.
      of: how many rounds the innermost loop makes, None when that is a run-time fact.
    """

    micro: str = "0"
    last: str = "False"
    at: tuple[str, ...] = ()
    of: int | None = None


OUTSIDE = Around()
"""In no loop."""


@dataclass(frozen=True)
class Places:
    """Where the values of a plan are kept while its emitted loop runs.

    Args:
      plan: the plan.
    """

    plan: Plan
    _names: dict[int, str] = field(init=False)
    _kept: frozenset[int] = field(init=False)
    _rounds: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        slots = self.plan.slots
        kept = {slots[result.name] for op in ops_of(self.plan.program.prologue) for result in op.results}
        streams = [node for lane in self.plan.lanes for node in lane.nodes if isinstance(node, StreamPlan)]
        by_round = {slot for one in streams if by_rounds(one) for call in one.calls for slot in call.writes}
        object.__setattr__(self, "_names", {slot: name for name, slot in slots.items()})
        object.__setattr__(self, "_kept", frozenset(kept))
        object.__setattr__(self, "_rounds", frozenset(by_round))

    def value(self, slot: int) -> str:
        """A value that is read or made."""
        where = "loop.kept" if slot in self._kept else "r" if slot in self._rounds else "v"
        return f'{where}["{self._names[slot]}"]'

    def read(self, read: Read) -> str:
        """An operand."""
        return f'loop.carried("{read.carry}", k)' if read.carry else self.value(read.slot)

    def made(self, call: Call) -> str:
        """What the results of a call are assigned to; "" when it has none."""
        return ", ".join(self.value(slot) for slot in call.writes)

    def condition(self, predicate: Predicate, around: Around) -> str:
        """A condition, as Python; "" for one that is always true."""
        return "" if predicate == ALWAYS else self._truth(predicate, around)

    def _truth(self, predicate: Predicate, around: Around) -> str:
        match predicate:
            case Always():
                return "True"
            case First():
                return "True" if around.micro == "0" else f"{around.micro} == 0"
            case Last():
                return around.last
            case MicroIs(index):
                return f"{around.micro} == {index}"
            case Every(period):
                return f"(k + 1) % {period} == 0"
            case Has(capability):
                return f'loop.has("{capability}")'
            case Flag(name):
                return self.value(self.plan.slots[name])
            case Not(term):
                inner = self._truth(term, around)
                return f"not ({inner})" if isinstance(term, And | Or) or " " in inner else f"not {inner}"
            case And(terms) | Or(terms):
                word = " and " if isinstance(predicate, And) else " or "
                found = [(term, self._truth(term, around)) for term in terms]
                return word.join(f"({text})" if isinstance(term, And | Or) else text for term, text in found)


def by_rounds(stream: StreamPlan) -> bool:
    """Whether the values of a loop are kept by micro-batch: lanes share them, or rounds overlap."""
    return stream.shared or bool(stream.ahead)
