"""Whether anybody waits for an op that does not come back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from steptrace.lower import Call, LoopPlan, Plan, StreamPlan
from steptrace.lower.plan import PlanNode, calls_of


class _Place(NamedTuple):
    """Where an op stands: its lane, how many steps it runs ahead, its place in the lane."""

    lane: str
    shift: int
    place: int

    def turn(self, step: int) -> tuple[int, int]:
        """Sorts instances of a lane in the order in which it runs them, those of one loop together."""
        return step - self.shift, self.place


def waited_for(plan: Plan, op: str, step: int, last: int) -> bool:
    """Whether a lane comes to wait for another one whose op of a step never comes back.

    Args:
      plan: the plan.
      op: id of the op.
      step: its step.
      last: the last step of the run.
    """
    places = dict(_places(plan))
    if op not in places:
        return False
    mine = places[op]
    stuck = mine.turn(step)
    return any(
        places[before].turn(at - distance) >= stuck
        for after, before, distance in _waits(plan)
        if after in places and before in places
        if places[before].lane == mine.lane != places[after].lane
        for at in range(max(distance, 0), last + 1)
        if at - distance <= last
    )


def _places(plan: Plan) -> Iterator[tuple[str, _Place]]:
    for lane in plan.lanes:
        for index, node in enumerate(lane.nodes):
            looped = not isinstance(node, Call)
            for call in calls_of((node,)):
                yield call.op.id, _Place(lane.name, 0 if looped else call.op.shift, index)
            if isinstance(node, LoopPlan):
                yield node.id, _Place(lane.name, 0, index)


def _waits(plan: Plan) -> Iterator[tuple[str, str, int]]:
    """Who waits for whom, over how many steps."""
    for after, holds in plan.holds.items():
        for hold in holds:
            yield after, hold.before, hold.distance
    for lane in plan.lanes:
        for node in lane.nodes:
            yield from ((id, head, 0) for id, head in _followers(node))


def _followers(node: PlanNode) -> Iterator[tuple[str, str]]:
    """The ops of a loop over micro-batches that wait for the lane which makes these."""
    if isinstance(node, StreamPlan) and not node.leads:
        yield from ((call.op.id, node.head.op.id) for call in node.calls)
