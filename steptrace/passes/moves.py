"""Single moves of a search: every other place for the ops of a step, and what tells the schedules apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from steptrace.ir import Loop, Op, Program, ops_of
from steptrace.passes.place import Place


def moves_of(program: Program, lanes: Iterable[str], most_ahead: int) -> Iterator[Place]:
    """Every other place for an op that stands directly in the step: lane, steps ahead, and what it stands above there.

    Only ops of one lane follow one another, so only places among those of the lane are told apart. Ops that follow one
    another on a lane may also go to another one together, since what waits for an op holds up its lane.
    """
    yield from _together(program, tuple(lanes))
    for at, node in enumerate(program.body):
        if not isinstance(node, Op):
            continue
        following = next((other.id for other in program.body[at + 1 :] if node.lane in _lanes_of(other)), "")
        for lane in dict.fromkeys((node.lane, *lanes)):
            others = [other.id for other in program.body if other is not node and lane in _lanes_of(other)]
            shifts = range(max(most_ahead, node.shift) + 1) if others else (node.shift,)
            for shift in shifts:
                for above in (*others, ""):
                    ahead, moved = shift - node.shift, lane if lane != node.lane else ""
                    if ahead or moved or above != following:
                        yield _placed(node.id, moved, ahead, above, others)


def _together(program: Program, lanes: tuple[str, ...]) -> Iterator[Place]:
    """Each op with those that follow it on its lane, as far as they run as far ahead, on each other lane."""
    ops = [node for node in program.body if isinstance(node, Op)]
    for at, first in enumerate(ops):
        group = [op.id for op in ops[at:] if op.lane == first.lane and op.shift == first.shift]
        for size in range(2, len(group) + 1):
            yield from (Place("+".join(group[:size]), lane) for lane in lanes if lane != first.lane)


def _placed(op: str, lane: str, ahead: int, above: str, others: list[str]) -> Place:
    if above or not others:
        return Place(op, lane, ahead, above)
    return Place(op, lane, ahead, below=others[-1])


def _lanes_of(node: Op | Loop) -> set[str]:
    return {op.lane for op in ops_of((node,))}


def key_of(program: Program) -> tuple[object, ...]:
    """What tells schedules apart: what each lane runs in which order, relative to where it begins, and the room."""
    lanes: dict[str, list[Op | Loop]] = {}
    for node in program.body:
        for lane in sorted(_lanes_of(node)):
            lanes.setdefault(lane, []).append(node)
    return program.resources, tuple((lane, *_from_its_start(nodes)) for lane, nodes in sorted(lanes.items()))


def _from_its_start(nodes: list[Op | Loop]) -> Iterator[Op | Loop]:
    """The nodes of a lane, shifted together so that the last to start runs no step ahead; a loop cannot be shifted."""
    least = min(0 if isinstance(node, Loop) else node.shift for node in nodes)
    yield from (node if isinstance(node, Loop) else replace(node, shift=node.shift - least) for node in nodes)
