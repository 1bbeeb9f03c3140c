"""Lowering in program order: each op becomes a call, each value a slot."""

from __future__ import annotations

from collections.abc import Mapping

from steptrace.diag import Note
from steptrace.diag.binding import NotLowerableError
from steptrace.ir import Loop, Node, Op, OpKind, Program, Use, kinds_of
from steptrace.lower.plan import Call, LoopPlan, Plan, PlanNode, Read
from steptrace.lower.targets import Target, target_named

HEADS = ("next_mb", "stream_mb", "next_part")
"""Kinds that make the items of the loop they stand first in."""


def lower(program: Program, target: str = "inline") -> Plan:
    """The plan that runs ``program`` on ``target`` in program order.

    Args:
      program: a verified program.
      target: name of the target.

    Returns:
      The plan; no part is bound yet.

    Raises:
      UnknownTargetError: there is no such target.
      NotLowerableError: an op asks for what the target cannot do.
    """
    goal = target_named(target)
    names = [result.name for op in program.ops() for result in op.results]
    slots = {name: slot for slot, name in enumerate(dict.fromkeys(names))}
    kinds = kinds_of(program)

    def part(nodes: tuple[Node, ...]) -> tuple[PlanNode, ...]:
        return tuple(_lower_node(node, slots, kinds, goal) for node in nodes)

    _check_carries(program, goal)
    return Plan(program, goal, slots, part(program.prologue), part(program.body), part(program.epilogue))


def _lower_node(node: Node, slots: Mapping[str, int], kinds: Mapping[str, OpKind], target: Target) -> PlanNode:
    if isinstance(node, Loop):
        nodes = tuple(_lower_node(inner, slots, kinds, target) for inner in node.body)
        first = nodes[0]
        if isinstance(first, Call) and first.kind.name in HEADS:
            return LoopPlan(node.id, node.kind, first, node.count, nodes[1:])
        return LoopPlan(node.id, node.kind, None, node.count, nodes)
    return _lower_op(node, slots, kinds[node.kind], target)


def _lower_op(op: Op, slots: Mapping[str, int], kind: OpKind, target: Target) -> Call:
    if op.shift:
        raise NotLowerableError(
            f"`{op.id}` runs {op.shift} step ahead, and the `{target.name}` target runs ops in program order",
            loc=op.loc,
        )
    reads = tuple(_read(use, op, slots, target) for use in op.args)
    return Call(op, kind, reads, tuple(slots[result.name] for result in op.results), op.when)


def _read(use: Use, op: Op, slots: Mapping[str, int], target: Target) -> Read:
    if use.micro or use.step not in (0, -1):
        raise NotLowerableError(
            f"`{op.id}` reads {use}: `{target.name}` keeps values of this step and carries of the one before",
            loc=op.loc,
        )
    return Read(slots[use.name], use.name if use.step else "")


def _check_carries(program: Program, target: Target) -> None:
    """A checkpoint holds the carried values, so they must be known where it is saved."""
    order = list(program.ops())
    saves = [index for index, op in enumerate(order) if op.kind == "save_checkpoint"]
    for index, op in enumerate(order):
        for name in {result.name for result in op.results} & {carry.name for carry in program.carries}:
            if saves and index > saves[0]:
                raise NotLowerableError(
                    f"`{op.id}` sets the carried value %{name} after `{order[saves[0]].id}` of the same step has "
                    f"saved it, and `{target.name}` resumes from what was saved",
                    loc=op.loc,
                    notes=(Note("saved here", order[saves[0]].loc),),
                    help="set it before the checkpoint",
                )
