"""Where the ops of a schedule stand: lane, shift, position; and when they run, relative to one another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from steptrace.check.edge import Edge
from steptrace.check.units import is_stream
from steptrace.diag.schedule import LoopLanesError
from steptrace.ir.program import Loop, Node, Op, Program, ops_of


@dataclass(frozen=True, slots=True)
class Place:
    """Where an op, or a loop that is moved as a whole, stands in a schedule.

    Attributes:
      id: its id.
      lane: what issues it.
      step_shift: how many steps ahead of its place it runs; 0 inside a loop over micro-batches.
      micro_shift: how many micro-batches ahead, inside such a loop.
      position: index in the step of the op, or of the loop around it.
      inner: index in the loop over micro-batches around it, -1 outside.
      loop: id of that loop, None outside.
    """

    id: str
    lane: str
    step_shift: int
    micro_shift: int
    position: int
    inner: int = -1
    loop: str | None = None


@lru_cache(maxsize=64)
def places_of(program: Program) -> Mapping[str, Place]:
    """The place of every op and every loop that is moved as a whole, by id, in the order of the schedule.

    Raises:
      LoopLanesError: a loop that is moved as a whole is issued by several lanes.
    """
    found: dict[str, Place] = {}
    for position, node in enumerate(program.body):
        if isinstance(node, Loop) and is_stream(node):
            for inner, part in enumerate(node.body):
                shift = part.shift if isinstance(part, Op) else 0
                found[part.id] = Place(part.id, lane_of(part), 0, shift, position, inner, node.id)
        else:
            shift = node.shift if isinstance(node, Op) else 0
            found[node.id] = Place(node.id, lane_of(node), shift, 0, position)
    return found


def lane_of(node: Node) -> str:
    """The lane that issues an op or a loop that is moved as a whole."""
    if isinstance(node, Op):
        return node.lane
    lanes = list(dict.fromkeys(op.lane for op in ops_of(node.body)))
    if len(lanes) != 1:
        message = f"loop `{node.id}` is issued by {len(lanes)} lanes: {', '.join(lanes)}"
        raise LoopLanesError(message, loc=node.loc, help="such a loop is scheduled as one piece: give its ops one lane")
    return lanes[0]


def lanes_of(program: Program) -> dict[str, list[Place]]:
    """The lanes of a schedule, each with its places in order."""
    lanes: dict[str, list[Place]] = {}
    for place in places_of(program).values():
        lanes.setdefault(place.lane, []).append(place)
    return lanes


def slack(edge: Edge, before: Place, after: Place) -> int:
    """How many steps (micro-batches, for an edge that counts them) a schedule leaves between the ends of an edge.

    Positive: the later end runs that many turns after. Negative: before. 0: both run in the same turn, and the position
    decides.
    """
    if edge.micro is not None:
        return edge.micro + before.micro_shift - after.micro_shift
    return edge.distance + before.step_shift - after.step_shift


def keeps(edge: Edge, before: Place, after: Place) -> bool:
    """Whether one lane's order keeps an edge, for every step, every micro-batch, and every number of them.

    On one lane an instance runs in turn ``step - shift``, and within a turn by position, so the comparison of the two
    ends does not depend on the step; nor, inside a loop, on the micro-batch. All rounds of a loop run in one turn.
    """
    room = slack(edge, before, after)
    if room:
        return room > 0
    if edge.micro is not None:
        return before.inner < after.inner
    if before.loop is not None and before.loop == after.loop:
        return False
    return before.position < after.position


def broken(program: Program, edges: tuple[Edge, ...]) -> Iterator[Edge]:
    """The edges between ops of one lane that the order of that lane does not keep."""
    places = places_of(program)
    for edge in edges:
        before, after = places[edge.before], places[edge.after]
        if before.lane == after.lane and not keeps(edge, before, after):
            yield edge
