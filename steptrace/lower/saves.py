"""Where a checkpoint may stand: what is behind it must run again from what it holds."""

from __future__ import annotations

from steptrace.diag import Note
from steptrace.diag.binding import NotLowerableError
from steptrace.ir import Op
from steptrace.lower.plan import Call, LoopPlan, Plan, PlanNode

SAVED_BASES = frozenset({"metrics", "version", "flag", "scalar"})
"""Base types of the values that a checkpoint holds."""

_TRAINS = frozenset({"dispatch", "take", "update"})
"""Kinds without operands whose work a checkpoint presupposes."""


def check_saves(plan: Plan) -> None:
    """Refuse a checkpoint that a run could not go on behind.

    A resumed run goes on with the op behind the ``save_checkpoint`` that it resumes from. So a checkpoint stands in
    the step itself, behind its training, and what follows it in the step reads only what it holds.

    Raises:
      NotLowerableError: points at the op that is in the way.
    """
    for nodes in (plan.prologue, *(node.body for node in _loops((*plan.body, *plan.epilogue)))):
        for node in nodes:
            if isinstance(node, Call) and node.kind.name == "save_checkpoint":
                where = "before step 0" if nodes is plan.prologue else "in a loop"
                raise NotLowerableError(
                    f"`{node.op.id}` stands {where}, and a run resumes behind a whole step's training",
                    loc=node.op.loc,
                    help="save behind the loops of the step",
                )
    saved: Op | None = None
    for node in plan.body:
        if saved is not None:
            _check_behind(node, saved, plan)
        if isinstance(node, Call) and node.kind.name == "save_checkpoint":
            saved = saved or node.op


def _loops(nodes: tuple[PlanNode, ...]) -> list[LoopPlan]:
    """Every loop, those inside loops included."""
    found = []
    for node in nodes:
        if isinstance(node, LoopPlan):
            found += [node, *_loops(node.body)]
    return found


def _check_behind(node: PlanNode, saved: Op, plan: Plan) -> None:
    """Refuse a node that does not run again from what the checkpoint in front of it holds."""
    if not isinstance(node, Call):
        name, loc = node.id, node.loc
        why = "is a loop"
    else:
        name, loc = node.op.id, node.op.loc
        bases = {result.name: result.type.base for op in plan.program.ops() for result in op.results}
        lost = [str(use) for use in node.op.args if bases[use.name] not in SAVED_BASES]
        why = f"reads {', '.join(lost)}" if lost else "trains" if node.kind.name in _TRAINS else ""
    if why:
        raise NotLowerableError(
            f"`{name}` stands behind `{saved.id}` and {why}, and `{plan.target.name}` resumes a run behind its "
            "checkpoint, which holds metrics, versions, flags and numbers",
            loc=loc,
            notes=(Note("saved here", saved.loc),),
            help="save the checkpoint behind it",
        )
