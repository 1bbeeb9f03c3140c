"""Another order of a schedule for a trainer that lacks what its order is for.

The choice table says how an op is carried out where it stands. One lack asks for another place: a stage in front of a
held update is worth something only where the update can be held. A trainer that stages and holds nothing back would
get the micro-batch before its update was sent, and wait for the device there. Its stage goes behind the update, where
its wait confirms that: the order of `stage-after-update`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from steptrace.check.schedule import check_schedule
from steptrace.diag.base import SteptraceError
from steptrace.ir import Op, Program
from steptrace.lower.choices import BEHIND, choices
from steptrace.lower.lowering import lower
from steptrace.lower.plan import Plan


def fitted(plan: Plan, capabilities: Iterable[str]) -> tuple[Plan, tuple[str, ...]]:
    """The plan in the order that suits what the parts can do, and what was changed, in words.

    The plan itself where nothing is lacking, and where the other order is not legal for its program.

    Args:
      plan: the plan.
      capabilities: of the target and of the parts, as `choices` takes them.
    """
    moved = [choice for choice in choices(plan, capabilities) if choice.way == BEHIND]
    if not moved or plan.source is None:
        return plan, ()
    program = plan.program
    for choice in moved:
        program = _behind_update(program, choice.op)
    try:
        check_schedule(program, plan.source.program)
    except SteptraceError:
        return plan, ()
    words = tuple(
        f"`{choice.op}` stands behind the update: the trainer has no `{lacking}`"
        for choice in moved
        for _, lacking in choice.passed_over[:1]
    )
    return lower(program, plan.target.name, source=plan.source.program), words


def _behind_update(program: Program, id: str) -> Program:
    """The program with a stage right behind the update that it stands in front of."""
    stage = next(node for node in program.body if node.id == id)
    rest = [node for node in program.body if node is not stage]
    at = max(place for place, node in enumerate(rest) if isinstance(node, Op) and node.kind == "apply_deferred_update")
    return replace(program, body=(*rest[: at + 1], stage, *rest[at + 1 :]))
