"""The plan: a program as calls on a slot table, ready to be driven."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from steptrace.diag import Loc
from steptrace.ir import Op, OpKind, Predicate, Program
from steptrace.lower.targets import Target


@dataclass(frozen=True, slots=True)
class Read:
    """Where an operand is read from.

    Attributes:
      slot: index in the step's slot table.
      carry: name of the carried value when it is the previous step's, else "".
    """

    slot: int
    carry: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """One op, resolved.

    Attributes:
      op: the op.
      kind: its row.
      reads: where its operands are.
      writes: slots of its results.
      when: its condition.
    """

    op: Op
    kind: OpKind
    reads: tuple[Read, ...]
    writes: tuple[int, ...]
    when: Predicate


@dataclass(frozen=True, slots=True)
class LoopPlan:
    """A loop: a head that makes the next item (None for a plain repetition) and the body run for each.

    Attributes:
      id: the loop's id.
      kind: the loop's kind.
      head: the call that makes the next item, run first in each iteration.
      count: number of iterations, None when the head decides.
      body: what runs in each iteration.
      loc: the line of the `for` statement.
    """

    id: str
    kind: str
    head: Call | None
    count: int | None
    body: tuple[PlanNode, ...]
    loc: Loc | None = None


PlanNode: TypeAlias = Call | LoopPlan


@dataclass(frozen=True, slots=True)
class Plan:
    """A lowered program.

    Attributes:
      program: the program it was lowered from.
      target: what it was lowered to.
      slots: slot of each value by name.
      prologue: run once, as step -1.
      body: run for each step.
      epilogue: run once, after the last step.
    """

    program: Program
    target: Target
    slots: dict[str, int]
    prologue: tuple[PlanNode, ...]
    body: tuple[PlanNode, ...]
    epilogue: tuple[PlanNode, ...]

    def calls(self) -> Iterator[Call]:
        """Every call, heads of loops included, in order."""
        for nodes in (self.prologue, self.body, self.epilogue):
            yield from _calls(nodes)

    def verbs(self) -> dict[str, Call]:
        """The parts' verbs that the plan calls, ``trainer.fwd_bwd``, each with the first call that needs it."""
        needed: dict[str, Call] = {}
        for call in self.calls():
            if call.kind.binds:
                needed.setdefault(call.kind.binds, call)
        return needed


def _calls(nodes: tuple[PlanNode, ...]) -> Iterator[Call]:
    for node in nodes:
        if isinstance(node, Call):
            yield node
            continue
        if node.head is not None:
            yield node.head
        yield from _calls(node.body)
