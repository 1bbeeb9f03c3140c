"""Calls made ready to run: which function stands behind each, and where its values are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

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
)
from steptrace.lower import Call, Hold, LoopPlan, Plan, PlanNode, StreamPlan
from steptrace.lower.plan import calls_of
from steptrace.run.frames import Frame, Frames

STEP, KEPT, CARRY, ROUND = range(4)
"""Where a value is: in the step's frame, beside the frames, in the step before, in a round of a shared loop."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A call, ready to run.

    Attributes:
      call: the call.
      rule: what runs it.
      kind: name of its kind.
      reads: for each operand where it is, its slot, and its name.
      keyed: whether its results are kept by micro-batch.
      when: its condition; None for always.
      flags: where each flag of the condition is, and its slot.
      holds: what it waits for.
      watched: whether other lanes wait for it.
      waits: whether its time ends when the device is done, in a timed run.
      peeled: for an op that stands for micro-batch 0, the call that makes that micro-batch; else None.
      polls: whether it looks for its operand.
      shift: how many turns ahead it runs.
    """

    call: Call
    rule: Callable[..., Any]
    kind: str
    reads: tuple[tuple[int, int, str], ...]
    keyed: bool
    when: Predicate | None
    flags: Mapping[str, tuple[int, int]]
    holds: tuple[Hold, ...]
    watched: bool
    waits: bool
    peeled: Call | None
    polls: bool
    shift: int


@dataclass(frozen=True, slots=True)
class ReadyLoop:
    """A loop that is run as one piece: see `LoopPlan`."""

    plan: LoopPlan
    head: Ready | None
    body: tuple[ReadyNode, ...]
    holds: tuple[Hold, ...]
    watched: tuple[str, ...]
    shift: int = 0


@dataclass(frozen=True, slots=True)
class ReadyStream:
    """One lane's part of a loop over micro-batches: see `StreamPlan`."""

    plan: StreamPlan
    calls: tuple[Ready, ...]
    watched: tuple[str, ...]
    shift: int = 0


ReadyNode = Ready | ReadyLoop | ReadyStream


class Maker:
    """Makes the calls of a plan ready.

    Args:
      plan: the plan.
      rules: the function behind each kind of op.
      frames: where the values are.
      watched: ids of the ops and loops that other lanes wait for.
      timed: whether calls that only send work off wait for it.
    """

    def __init__(
        self, plan: Plan, rules: Mapping[str, Callable[..., Any]], frames: Frames, watched: frozenset[str], timed: bool
    ) -> None:
        self._plan, self._rules, self._frames, self._watched, self._timed = plan, rules, frames, watched, timed
        self._keyed = frozenset(
            slot
            for lane in plan.lanes
            for node in lane.nodes
            if isinstance(node, StreamPlan) and (node.shared or node.ahead)
            for call in node.calls
            for slot in call.writes
        )

    def nodes(self, nodes: tuple[PlanNode, ...]) -> tuple[ReadyNode, ...]:
        """The nodes, ready."""
        return tuple(self._node(node) for node in nodes)

    def _node(self, node: PlanNode) -> ReadyNode:
        if isinstance(node, Call):
            return self.call(node)
        if isinstance(node, StreamPlan):
            ids = tuple(call.op.id for call in node.calls if call.op.id in self._watched)
            return ReadyStream(node, tuple(self.call(call) for call in node.calls), ids)
        head = None if node.head is None else self.call(node.head)
        ids = tuple(id for id in (node.id, *(call.op.id for call in calls_of((node,)))) if id in self._watched)
        return ReadyLoop(node, head, self.nodes(node.body), self._plan.holds.get(node.id, ()), ids)

    def call(self, call: Call) -> Ready:
        """One call, ready."""
        op = call.op
        return Ready(
            call,
            self._rules[call.kind.name],
            call.kind.name,
            tuple((CARRY if read.carry else self._where(read.slot), read.slot, read.carry) for read in call.reads),
            any(slot in self._keyed for slot in call.writes),
            None if call.when == ALWAYS else call.when,
            {name: (self._where(slot), slot) for name, slot in _flags(call.when, self._plan.slots)},
            self._plan.holds.get(op.id, ()),
            op.id in self._watched,
            self._timed and not call.kind.blocking,
            self._plan.peeled.get(op.id),
            call.kind.polls,
            op.shift,
        )

    def _where(self, slot: int) -> int:
        if slot in self._frames.kept_slots:
            return KEPT
        return ROUND if slot in self._keyed else STEP


def _flags(predicate: Predicate, slots: Mapping[str, int]) -> list[tuple[str, int]]:
    match predicate:
        case Flag(name):
            return [(name, slots[name])]
        case Not(term):
            return _flags(term, slots)
        case And(terms) | Or(terms):
            return [flag for term in terms for flag in _flags(term, slots)]
        case _:
            return []


@dataclass(frozen=True, slots=True)
class Round:
    """What a condition may ask of the round it stands in.

    Attributes:
      micro: the micro-batch.
      last: whether it is the step's last.
    """

    micro: int = 0
    last: bool = False


def holds(predicate: Predicate, ready: Ready, frame: Frame, frames: Frames, round: Round, able: frozenset[str]) -> bool:
    """Whether a call's condition is true."""
    match predicate:
        case Always():
            return True
        case First():
            return round.micro == 0
        case Last():
            return round.last
        case MicroIs(index):
            return round.micro == index
        case Every(period):
            return (frame.step + 1) % period == 0
        case Has(capability):
            return capability in able
        case Flag(name):
            where, slot = ready.flags[name]
            return bool(located(where, slot, frame, frames, round.micro))
        case Not(term):
            return not holds(term, ready, frame, frames, round, able)
        case And(terms):
            return all(holds(term, ready, frame, frames, round, able) for term in terms)
        case Or(terms):
            return any(holds(term, ready, frame, frames, round, able) for term in terms)


def located(where: int, slot: int, frame: Frame, frames: Frames, micro: int) -> Any:
    """A value that is not carried; None when it is not made."""
    if where == STEP:
        return frame.values[slot]
    if where == ROUND:
        return frame.rounds[micro].get(slot) if micro in frame.rounds else None
    return frames.before.values[slot]
