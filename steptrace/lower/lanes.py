"""The lanes of a schedule: who runs what in which order, and what each op waits for on other lanes.

Within a lane its order keeps every edge. Between lanes an edge is a wait; those that others imply are left out (see
`steptrace.check.waits`). A wait for work on a device is left to JAX where everything is in one process: it orders
computations by their data and by the buffers that they give away, and a read on the host waits by itself. So no
such wait becomes a `Hold`; one for a call on another lane to have been made does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import MappingProxyType

from steptrace.check.reference import reference_of
from steptrace.check.units import units_of
from steptrace.check.values import needed_flags
from steptrace.check.waits import waits_of
from steptrace.diag.binding import NotLowerableError
from steptrace.ir import Loop, Op, Program, flags_of, ops_of
from steptrace.lower.plan import Call, Hold, Lane, Plan, PlanNode, StreamPlan, calls_of

_STREAM_HEADS = ("next_mb", "stream_mb")
_CALLER = "host"


def in_lanes(program: Program, source: Plan, body: tuple[PlanNode, ...], call: Callable[[Op], Call]) -> Plan:
    """The plan of a schedule.

    Args:
      program: a schedule that is legal for the program of ``source``.
      source: the plan of what it was derived from; it shares its slots.
      body: the schedule's step, lowered.
      call: lowers one op.

    Raises:
      NotLowerableError: whether a step exists depends on flags that are known too late.
    """
    calls = {one.op.id: one for one in calls_of(body)}
    _check_known(calls.values())
    nodes = tuple(node for node in program.body)
    heads = {loop.id: _head(loop, calls) for loop in nodes if isinstance(loop, Loop) and loop.kind == "micro_batches"}
    peeled = _peeled(program, heads, calls)
    lanes = _lanes(nodes, body, heads, calls, peeled)
    return Plan(
        program,
        source.target,
        source.slots,
        source.prologue,
        body,
        source.epilogue,
        lanes=lanes,
        holds=MappingProxyType(_holds(program, source.program, peeled, heads)),
        peeled=MappingProxyType(peeled),
        source=source,
    )


def _head(loop: Loop, calls: dict[str, Call]) -> Call:
    """The call that makes the loop's micro-batches; a schedule may have moved it from the front."""
    return next(calls[op.id] for op in ops_of(loop.body) if op.kind in _STREAM_HEADS)


def _peeled(program: Program, heads: dict[str, Call], calls: dict[str, Call]) -> dict[str, Call]:
    """For each op that stands for micro-batch 0 outside its loop, the one that makes that micro-batch."""
    firsts = {
        call.op.origin.op: call
        for call in calls.values()
        if call.op.micro is not None and call.kind.name in _STREAM_HEADS and call.op.origin
    }
    found: dict[str, Call] = {}
    for loop in program.body:
        if not isinstance(loop, Loop) or loop.id not in heads:
            continue
        origin = heads[loop.id].op.origin
        first = firsts.get(origin.op) if origin else None
        inside = {op.origin.op for op in ops_of(loop.body) if op.origin}
        for op in program.body:
            if isinstance(op, Op) and op.micro is not None and op.origin and op.origin.op in inside and first:
                found[op.id] = first
    return found


def _lanes(
    nodes: tuple[Op | Loop, ...],
    body: tuple[PlanNode, ...],
    heads: dict[str, Call],
    calls: dict[str, Call],
    peeled: dict[str, Call],
) -> tuple[Lane, ...]:
    made: dict[str, list[tuple[PlanNode, int]]] = {_CALLER: []}
    for node, lowered in zip(nodes, body, strict=True):
        if isinstance(node, Op):
            made.setdefault(node.lane, []).append((lowered, node.shift))
        elif node.id in heads and all(isinstance(inner, Op) for inner in node.body):
            for lane, part in _streams(node, heads[node.id], calls, peeled).items():
                made.setdefault(lane, []).append((part, 0))
        else:
            made.setdefault(next(ops_of((node,))).lane, []).append((lowered, 0))
    return tuple(
        Lane(
            name,
            tuple(node for node, _ in run),
            max((shift for _, shift in run), default=0),
            min((shift for _, shift in run), default=0),
        )
        for name, run in made.items()
    )


def _streams(loop: Loop, head: Call, calls: dict[str, Call], peeled: dict[str, Call]) -> dict[str, StreamPlan]:
    """Each lane's part of a loop over micro-batches."""
    lanes = list(dict.fromkeys(op.lane for op in ops_of(loop.body)))
    first = next((made for made in peeled.values() if made.op.origin == head.op.origin), None)
    parts = {}
    for lane in lanes:
        mine = tuple(calls[op.id] for op in ops_of(loop.body) if op.lane == lane)
        ahead = max(call.op.shift for call in mine)
        parts[lane] = StreamPlan(loop.id, mine, head, first, loop.start, ahead, len(lanes) > 1, loop.loc)
    return parts


def _holds(
    program: Program, source: Program, peeled: dict[str, Call], heads: dict[str, Call]
) -> dict[str, tuple[Hold, ...]]:
    """What each op waits for on other lanes, by its id."""
    reference = reference_of(program, source)
    found: dict[str, list[Hold]] = {}
    for wait in waits_of(program, reference):
        if wait.from_lane == wait.to_lane:
            continue
        edge = wait.edge
        hold = Hold(edge.before, edge.distance, edge.micro, f"{edge.kind.value} {edge.what}".strip())
        found.setdefault(edge.after, []).append(hold)
    units = units_of(reference)
    lanes = {op.id: op.lane for op in ops_of(program.body)}
    for id, first in peeled.items():
        # Whether the step has a first micro-batch decides whether the op runs, also where it takes no value of it.
        if lanes[id] != first.op.lane and not units[id].polls and not needed_flags(units[id]):
            there = [hold.before for hold in found.get(id, ())]
            if not any(peeled.get(before) is first and lanes[before] == first.op.lane for before in there):
                found.setdefault(id, []).append(Hold(first.op.id, 0, None, "exists"))
    return {id: tuple(holds) for id, holds in found.items()}


def _check_known(calls: Iterable[Call]) -> None:
    """Lanes that run ahead must know by themselves which steps there are."""
    for call in calls:
        if call.kind.name == "dispatch" and call.op.attr("keep"):
            raise NotLowerableError(
                f"`{call.op.id}` draws until enough groups can be trained, so how many prompts a step draws is known "
                "when it has begun, and a lane that runs ahead cannot know which step is the last",
                loc=call.op.loc,
                help="run the program without a pipeline, or draw a fixed number with `extra`",
            )
        if call.kind.name == "dispatch" and flags_of(call.when):
            raise NotLowerableError(
                f"`{call.op.id}` runs when `{call.when}`, so how many prompts a step draws is known when it has begun, "
                "and a lane that runs ahead cannot know which step is the last",
                loc=call.op.loc,
                help="dispatch under conditions on the step alone, or run the program without a pipeline",
            )
