"""The pass ``pipeline-micro-batches``."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import ClassVar

from steptrace.check.edge import Edge
from steptrace.check.edges import edges_of
from steptrace.ir.builtin import kinds_of
from steptrace.ir.program import Loop, Op, Program
from steptrace.ir.verify.runs import Role
from steptrace.motion import Schedule, move_to_lane, rotate
from steptrace.passes.base import declined
from steptrace.passes.roles import feeding, leaving, training_loop, used_by, with_role
from steptrace.passes.room import chains_to


@dataclass(frozen=True)
class PipelineMicroBatches:
    """Prepares micro-batch m+1 (packing, reference log-probs) while micro-batch m trains.

    Hides what leads to a training call behind the call before: in the loop, those ops run one micro-batch ahead.
    Where they wait for data (groups are packed as they arrive) they move to the lane ``packer`` instead, and go on
    by themselves as far as the host memory of the step allows.

    Holds one more micro-batch; on the lane ``packer``, the step's.

    Declines when every such op must follow the training call before it: log-probs under the actor are a call to the
    trainer, whose order is kept; what users' ops write themselves would stay when that call fails.
    """

    name: ClassVar[str] = "pipeline-micro-batches"

    def run(self, schedule: Schedule) -> Schedule:
        """See the class."""
        loop = training_loop(schedule.program)
        ids = {op.id for op in with_role(schedule.program, Role.ACCUMULATE)}
        calls = tuple(op for op in loop.body if isinstance(op, Op) and op.id in ids)
        fed = feeding(loop.body, used_by(calls))
        held = _held(schedule.reference, loop, {op.id for op in calls})
        marks = leaving(schedule.reference, fed)
        marked = {*marks, *chains_to(schedule.reference, marks, 0)}
        group = tuple(op for op in fed if op.id not in held and op.id not in marked)
        if not group:
            edge = next((held[op.id] for op in fed if op.id in held), None)
            message = f"nothing that leads to `{calls[0].id}` may run before the call on the micro-batch before it"
            raise declined(f"{message}: {edge.reason}" if edge else message, loc=calls[0].loc, edge=edge)
        moved = next((op for op in group if op.shift or op.lane != calls[0].lane), None)
        if moved is not None:
            how = (
                "runs ahead already" if moved.shift else f"is issued by lane {moved.lane} already, beside the training"
            )
            raise declined(f"`{moved.id}` {how}", loc=moved.loc)
        names = tuple(op.id for op in group)
        if any(_waits(schedule.program, op) for op in group):
            return move_to_lane(schedule, names, lane="packer").schedule
        first = next(node.id for node in loop.body if node.id not in names)
        return rotate(schedule, names, above=first).schedule


def _waits(program: Program, op: Op) -> bool:
    return kinds_of(program)[op.kind].cost == "wait"


def _held(reference: Program, loop: Loop, calls: set[str]) -> dict[str, Edge]:
    """The ops of the loop that wait, in micro-batch m+1, for a call on micro-batch m; each with the edge by which."""
    ahead: dict[str, list[Edge]] = defaultdict(list)
    inside = {node.id for node in loop.body}
    for edge in edges_of(reference):
        if edge.micro is not None and edge.before in inside and edge.after in inside:
            ahead[edge.before].append(edge)
    held: dict[str, Edge] = {}
    pending = [(call, 0) for call in calls]
    while pending:
        id, turns = pending.pop()
        for edge in ahead[id]:
            far = turns + (edge.micro or 0)
            if far == 1 and edge.after not in held and edge.after not in calls:
                held[edge.after] = edge
                pending.append((edge.after, far))
            elif far == 0 and edge.after not in calls:
                pending.append((edge.after, far))
    return held
