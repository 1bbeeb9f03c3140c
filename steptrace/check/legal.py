"""Where an op could stand: the places that its edges leave it, computed for diagnostics and for motions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from steptrace.check.edge import Edge
from steptrace.check.edges import edges_of
from steptrace.check.places import Place, broken, keeps, places_of
from steptrace.check.units import units_of
from steptrace.check.values import poll_edges
from steptrace.ir.builtin import kinds_of
from steptrace.ir.program import Program

_END = 1 << 30
_MOST_STEPS = 4
"""How much more staleness a diagnostic tries before it gives up on it."""


@dataclass(frozen=True, slots=True)
class Room:
    """Where an op may stand on a lane, at one shift.

    Attributes:
      op: the op.
      shift: steps (inside a loop: micro-batches) ahead.
      lane: the lane.
      after: id of the last op of the lane that it must stand behind, ``""`` for none.
      before: id of the first op of the lane that it must stand in front of, ``""`` for none.
      low: the edge that demands ``after``, None for none.
      high: the edge that demands ``before``, None for none.
      possible: whether there is a place at all.
      unit: what the shift counts.
    """

    op: str
    shift: int
    lane: str
    after: str
    before: str
    low: Edge | None
    high: Edge | None
    possible: bool
    unit: Literal["step", "micro-batch"] = "step"

    def __str__(self) -> str:
        parts = [f"after `{self.after}`"] if self.after else []
        parts += [f"before `{self.before}`"] if self.before else []
        text = " and ".join(parts)
        plural = "" if self.shift == 1 else "es" if self.unit == "micro-batch" else "s"
        ahead = f", {self.shift} {self.unit}{plural} ahead" if self.shift else ""
        if self.possible:
            return (text or f"anywhere on lane {self.lane}") + ahead
        why = f": that would be {text}" if len(parts) == 2 else ""
        return f"nowhere on lane {self.lane}{ahead}{why}"


def blocking_edge(program: Program, edges: tuple[Edge, ...], op_id: str) -> Edge | None:
    """The first edge at an op that its lane's order does not keep, None when it stands well.

    To ask whether a motion is allowed, ask about the program that it would make.

    Args:
      program: the schedule, with the op where it is asked about.
      edges: those of the reference.
      op_id: the op, or loop that is moved as a whole.
    """
    near = tuple(edge for edge in edges if op_id in (edge.before, edge.after))
    return next(broken(program, near), None)


def legal_places(
    program: Program, reference: Program, op_id: str, shift: int | None = None, lane: str | None = None
) -> Room:
    """Where an op may stand among the other ops of a lane, which stay where they are.

    For an op inside a loop over micro-batches the places are those in the loop, and the shift counts micro-batches.

    Args:
      program: the schedule.
      reference: its reference.
      op_id: the op, or loop that is moved as a whole.
      shift: how far ahead it shall run; as it does now by default.
      lane: the lane; its own by default.
    """
    places = places_of(program)
    here = places[op_id]
    if shift is not None:
        here = replace(here, micro_shift=shift) if here.loop is not None else replace(here, step_shift=shift)
    here = replace(here, lane=lane or here.lane)
    low: _Bound | None = None
    high: _Bound | None = None
    possible = True
    for edge in _on_one_lane(reference, program):
        if op_id not in (edge.before, edge.after) or edge.before == edge.after:
            continue
        other = places[edge.after if edge.before == op_id else edge.before]
        if other.lane != here.lane or (here.loop is not None and other.loop != here.loop):
            continue
        early, late = _kept_at_ends(edge, here, other)
        possible &= early or late
        if early and not late:
            high = min(high or _bound(other, edge), _bound(other, edge), key=lambda bound: bound[0])
        elif late and not early:
            low = max(low or _bound(other, edge), _bound(other, edge), key=lambda bound: bound[0])
    return Room(
        op_id,
        here.micro_shift if here.loop is not None else here.step_shift,
        here.lane,
        _name(low[1], here) if low else "",
        _name(high[1], here) if high else "",
        low[2] if low else None,
        high[2] if high else None,
        possible and (low is None or high is None or low[0] < high[0]),
        "step" if here.loop is None else "micro-batch",
    )


def _on_one_lane(reference: Program, program: Program) -> tuple[Edge, ...]:
    """What the order of a lane must keep: the edges, and that an op looks for a value only once it may be there."""
    return (*edges_of(reference, program), *poll_edges(units_of(reference)))


_Bound: TypeAlias = tuple[tuple[int, int], Place, Edge]
"""Where another op stands, the op, and the edge for which it bounds the room."""


def _bound(other: Place, edge: Edge) -> _Bound:
    return ((other.position, other.inner), other, edge)


def _kept_at_ends(edge: Edge, here: Place, other: Place) -> tuple[bool, bool]:
    """Whether the edge holds if the op stands first of all on the lane, and if it stands last."""
    ends = (replace(here, position=-1, inner=-2), replace(here, position=_END, inner=_END))
    if edge.before == here.id:
        first, last = (keeps(edge, end, other) for end in ends)
    else:
        first, last = (keeps(edge, other, end) for end in ends)
    return first, last


def _name(other: Place, here: Place) -> str:
    """What an op stands beside: another op, or the loop that the other one is in."""
    return other.id if other.loop is None or here.loop is not None else other.loop


def allowing_staleness(program: Program, reference: Program, edge: Edge) -> int | None:
    """The least staleness at which nothing stands against the two ends of a broken edge, None when none helps.

    Computed: the edges of the reference are derived anew for a contract with one more, until those between the two
    ops hold.
    """
    rows = kinds_of(reference)
    patterns = [pattern for op in reference.ops() for pattern in (*rows[op.kind].reads, *rows[op.kind].writes)]
    if not any("w" in pattern.partition("[")[2] for pattern in patterns):
        return None
    for more in range(1, _MOST_STEPS + 1):
        staleness = reference.contract.staleness + more
        looser = replace(reference, contract=replace(reference.contract, staleness=staleness))
        pair = {edge.before, edge.after}
        near = tuple(other for other in _on_one_lane(looser, program) if {other.before, other.after} == pair)
        if not any(broken(program, near)):
            return staleness
    return None
