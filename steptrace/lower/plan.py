"""The plan: a program as calls on tables of values, lane by lane, ready to be driven."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
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


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """One lane's part of a loop over micro-batches that a schedule has opened.

    Attributes:
      id: the loop's id.
      calls: what the lane runs in each round, in order, the head among them where the lane issues it.
      head: the call that makes the micro-batches, on whichever lane.
      peeled: the head's copy for round 0 where that stands before the loop, else None.
      start: the first round that the loop runs.
      ahead: the most rounds that a call of this lane runs ahead.
      shared: whether several lanes issue its calls.
      loc: the line of the `for` statement.
    """

    id: str
    calls: tuple[Call, ...]
    head: Call
    peeled: Call | None
    start: int
    ahead: int
    shared: bool
    loc: Loc | None = None

    @property
    def leads(self) -> bool:
        """Whether this lane makes the micro-batches."""
        return any(call is self.head for call in self.calls)


PlanNode: TypeAlias = Call | LoopPlan | StreamPlan


@dataclass(frozen=True, slots=True)
class Hold:
    """What an op waits for: another lane must be past ``before`` of ``distance`` steps earlier.

    Attributes:
      before: id of the op, or loop, on the other lane.
      distance: steps, 0 or more.
      micro: within one loop, micro-batches; None for all of the step.
      why: the reason in a word, and what it is about.
    """

    before: str
    distance: int
    micro: int | None
    why: str


@dataclass(frozen=True, slots=True)
class Lane:
    """What one thread runs, in order, for each turn.

    Attributes:
      name: its name.
      nodes: its calls and loops.
      most, least: the largest and the smallest number of steps that one of them runs ahead.
    """

    name: str
    nodes: tuple[PlanNode, ...]
    most: int = 0
    least: int = 0


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
      lanes: the body by lane; the first one is the caller's thread.
      holds: by id of an op, what it waits for on other lanes.
      peeled: by id of an op that stands for micro-batch 0 outside its loop, the op that makes that micro-batch.
      source: the plan of the program that this schedule was derived from; None when it is none.
    """

    program: Program
    target: Target
    slots: dict[str, int]
    prologue: tuple[PlanNode, ...]
    body: tuple[PlanNode, ...]
    epilogue: tuple[PlanNode, ...]
    lanes: tuple[Lane, ...] = ()
    holds: Mapping[str, tuple[Hold, ...]] = field(default_factory=lambda: MappingProxyType({}))
    peeled: Mapping[str, Call] = field(default_factory=lambda: MappingProxyType({}))
    source: Plan | None = None

    @property
    def base(self) -> Plan:
        """The plan of the program as its author wrote it."""
        return self if self.source is None else self.source

    @property
    def ahead(self) -> int:
        """The most steps that any op runs ahead of its place."""
        return max(lane.most for lane in self.lanes)

    def calls(self) -> Iterator[Call]:
        """Every call, heads of loops included, in order."""
        for nodes in (self.prologue, self.body, self.epilogue):
            yield from calls_of(nodes)

    def verbs(self) -> dict[str, Call]:
        """The parts' verbs that the plan calls, ``trainer.fwd_bwd``, each with the first call that needs it.

        Those of the program as written: what the parts of a law need is for the choice table to say.
        """
        needed: dict[str, Call] = {}
        for call in self.base.calls():
            if call.kind.binds:
                needed.setdefault(call.kind.binds, call)
        return needed


def calls_of(nodes: tuple[PlanNode, ...]) -> Iterator[Call]:
    """Every call of ``nodes``, those inside loops included."""
    for node in nodes:
        if isinstance(node, Call):
            yield node
        elif isinstance(node, StreamPlan):
            yield from node.calls
        else:
            if node.head is not None:
                yield node.head
            yield from calls_of(node.body)
