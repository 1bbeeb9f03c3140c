"""Lowering: each op becomes a call, each value a slot, each lane a list."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from steptrace.diag.binding import NotLowerableError
from steptrace.ir import Loop, Node, Op, OpKind, Program, Use, kinds_of
from steptrace.lower.lanes import in_lanes
from steptrace.lower.plan import Call, Lane, LoopPlan, Plan, PlanNode, Read
from steptrace.lower.saves import check_saves
from steptrace.lower.takes import check_takes
from steptrace.lower.targets import Target, target_named

HEADS = ("next_mb", "stream_mb", "next_part")
"""Kinds that make the items of the loop they stand first in."""

CALLER = "host"
"""The lane whose ops the caller's thread issues."""


def lower(program: Program, target: str = "inline", *, source: Program | None = None) -> Plan:
    """The plan that runs ``program`` on ``target``.

    Without a source the program runs in its own order, on the caller's thread. With one it is a schedule, which runs
    lane by lane: see `steptrace.lower.lanes`.

    Args:
      program: a verified program, or a schedule that `check_schedule` accepts.
      target: name of the target.
      source: the program that a schedule was derived from.

    Returns:
      The plan; no part is bound yet.

    Raises:
      UnknownTargetError: there is no such target.
      NotLowerableError: an op asks for what the target cannot do.
    """
    goal = target_named(target)
    base = program if source is None else source
    slots = _slots(base, program)
    plan = _in_order(_Lowering(goal, slots, kinds_of(base)), base)
    check_takes(plan)
    check_saves(plan)
    if source is None or source == program:
        return plan
    lowering = _Lowering(goal, slots, kinds_of(program), scheduled=True)
    return in_lanes(program, plan, lowering.nodes(program.body), lowering.call)


def _slots(*programs: Program) -> dict[str, int]:
    """A slot for each value of the programs; values of one name are the same one."""
    names = [result.name for program in programs for op in program.ops() for result in op.results]
    return {name: slot for slot, name in enumerate(dict.fromkeys(names))}


def _in_order(lowering: _Lowering, program: Program) -> Plan:
    """The plan of a program as it is written, all on the caller's thread."""
    body = lowering.nodes(program.body)
    return Plan(
        program,
        lowering.target,
        dict(lowering.slots),
        lowering.nodes(program.prologue),
        body,
        lowering.nodes(program.epilogue),
        lanes=(Lane(CALLER, body),),
    )


@dataclass(frozen=True, slots=True)
class _Lowering:
    """What the rules look at.

    Attributes:
      target: what is lowered to.
      slots: slot of each value by name.
      kinds: the rows of the program.
      scheduled: whether the program is a schedule, with parts of laws, shifts and peeled rounds.
    """

    target: Target
    slots: Mapping[str, int]
    kinds: Mapping[str, OpKind]
    scheduled: bool = False

    def nodes(self, nodes: tuple[Node, ...]) -> tuple[PlanNode, ...]:
        return tuple(self._loop(node) if isinstance(node, Loop) else self.call(node) for node in nodes)

    def _loop(self, loop: Loop) -> LoopPlan:
        if loop.start and not self.scheduled:
            raise NotLowerableError(
                f"loop `{loop.id}` begins with round {loop.start}, and the `{self.target.name}` target has no rule for "
                "rounds outside their loop",
                loc=loop.loc,
            )
        nodes = self.nodes(loop.body)
        first = nodes[0]
        if isinstance(first, Call) and first.kind.name in HEADS:
            return LoopPlan(loop.id, loop.kind, first, loop.count, nodes[1:], loop.loc)
        return LoopPlan(loop.id, loop.kind, None, loop.count, nodes, loop.loc)

    def call(self, op: Op) -> Call:
        """One op, resolved."""
        kind = self.kinds[op.kind]
        wish = self._cannot(op, kind)
        if wish:
            raise NotLowerableError(f"`{op.id}` {wish}", loc=op.loc)
        reads = tuple(self._read(use, op) for use in op.args)
        return Call(op, kind, reads, tuple(self.slots[result.name] for result in op.results), op.when)

    def _cannot(self, op: Op, kind: OpKind) -> str:
        """What an op asks for that the target has no rule for, in words; "" when it has one."""
        name = self.target.name
        known = self.target.rules | (self.target.scheduled if self.scheduled else frozenset())
        if not kind.user and kind.name not in known:
            return f"is a `{kind.name}`, which the `{name}` target has no rule for"
        if self.scheduled:
            return ""
        if op.shift:
            return f"runs {op.shift} ahead of its place, and the `{name}` target runs ops in program order"
        if op.micro is not None:
            return f"stands for micro-batch {op.micro} outside its loop, which the `{name}` target has no rule for"
        if op.attr("closes"):
            return f"also closes the step ({op.attr('closes')}), which the `{name}` target has no rule for"
        return ""

    def _read(self, use: Use, op: Op) -> Read:
        if use.micro or use.step not in (0, -1):
            raise NotLowerableError(
                f"`{op.id}` reads {use}: `{self.target.name}` keeps values of this step and carries of the one before",
                loc=op.loc,
            )
        return Read(self.slots[use.name], use.name if use.step else "")
