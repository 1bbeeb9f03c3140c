"""What every motion ends with: the check of what it made, and the record of what was shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from steptrace.check.edge import Edge
from steptrace.check.edges import edges_of
from steptrace.check.places import Place, broken, places_of, slack
from steptrace.check.schedule import check_order
from steptrace.diag.base import SteptraceError
from steptrace.ir.program import Program
from steptrace.motion.edit import node_of
from steptrace.motion.schedule import (
    NOTHING_FORWARDED,
    Argument,
    Consulted,
    Discharged,
    MotionClass,
    Moved,
    Obligation,
    Schedule,
    Step,
)


@dataclass(frozen=True, slots=True)
class Call:
    """A motion as it was called.

    Attributes:
      motion: its name.
      args: its positional arguments after the schedule.
      options: its named arguments.
    """

    motion: str
    args: tuple[Argument, ...]
    options: tuple[tuple[str, Argument], ...] = ()


class BrokenEdge(Exception):  # noqa: N818 - it is the cause of a refusal, not a failure
    """The cause of a refusal that one edge stands behind.

    Attributes:
      edge: the edge.
    """

    def __init__(self, edge: Edge) -> None:
        super().__init__(str(edge))
        self.edge = edge


def check(program: Program, reference: Program) -> None:
    """Refuses a schedule that its reference does not allow; the cause of the refusal is the first edge it breaks.

    Raises:
      SteptraceError: the order changes what is trained, saved or seen, hangs, or needs too much room.
    """
    try:
        check_order(program, reference)
    except SteptraceError as error:
        edge = next(broken(program, edges_of(reference, program)), None)
        if edge is None:
            raise
        raise error from BrokenEdge(edge)


def one_or_all(ids: tuple[str, ...]) -> Argument:
    """Ids as an argument: a single one by itself."""
    return ids[0] if len(ids) == 1 else ids


def in_words(ids: tuple[str, ...]) -> str:
    """Ids for a sentence."""
    return ", ".join(f"`{id}`" for id in ids)


def moved(schedule: Schedule, program: Program, call: Call, ids: tuple[str, ...], claim: str) -> Moved:
    """The result of a motion that only changes where and when ops run.

    Raises:
      SteptraceError: the new order changes what is trained, saved or seen, hangs, or needs too much room.
    """
    check(program, schedule.reference)
    edges = _consulted(schedule, program, frozenset(ids))
    how: Discharged = "slack" if edges else "no edge"
    loc = node_of(program, ids[0]).loc
    obligation = Obligation(call.motion, "order", claim, edges, how, loc)
    return _recorded(schedule, schedule.source, schedule.reference, program, call, obligation, NOTHING_FORWARDED)


def rewritten(
    schedule: Schedule,
    program: Program,
    reference: Program,
    call: Call,
    claim: str,
    *,
    class_: MotionClass = "order",
    how: Discharged = "law",
    source: Program | None = None,
    forwarding: Mapping[str, tuple[str, ...]] = NOTHING_FORWARDED,
    at: str = "",
    assumes: str = "",
) -> Moved:
    """The result of a motion that rewrites the schedule and its reference alike.

    Args:
      schedule: the schedule before.
      program: the schedule after.
      reference: its reference after.
      call: the motion.
      claim: what was done, one sentence.
      class_: what the motion leaves equal.
      how: how that was shown.
      source: the source after, where the contract changed.
      forwarding: which ops each changed op became.
      at: the op or loop it was about, in the schedule before.
      assumes: what it takes for granted about the parts that are bound.

    Raises:
      SteptraceError: what holds for the new reference does not hold for the new schedule.
    """
    check(program, reference)
    loc = node_of(schedule.program, at).loc if at else schedule.program.loc
    obligation = Obligation(call.motion, class_, claim, (), how, loc, assumes)
    frozen = MappingProxyType(dict(forwarding))
    return _recorded(schedule, source or schedule.source, reference, program, call, obligation, frozen)


def _recorded(
    schedule: Schedule,
    source: Program,
    reference: Program,
    program: Program,
    call: Call,
    obligation: Obligation,
    forwarding: Mapping[str, tuple[str, ...]],
) -> Moved:
    step = Step(call.motion, call.args, call.options, forwarding, obligation)
    return Moved(Schedule(source, reference, program, (*schedule.trail, step)), forwarding, obligation)


def _consulted(schedule: Schedule, program: Program, group: frozenset[str]) -> tuple[Consulted, ...]:
    """The edges between what moved and what it changed places with."""
    before, after = places_of(schedule.program), places_of(program)
    found = []
    for edge in edges_of(schedule.reference, program):
        one, other = after[edge.before], after[edge.after]
        inside = (_of(one, group), _of(other, group))
        if inside[0] != inside[1] and _relation(before[one.id], before[other.id]) != _relation(one, other):
            room = slack(edge, one, other)
            found.append(Consulted(edge, room if _first(one, other) or one.lane != other.lane else room - 1))
    return tuple(found)


def _of(place: Place, group: frozenset[str]) -> bool:
    return place.id in group or place.loop in group


def _relation(one: Place, other: Place) -> tuple[bool, bool, int, int]:
    """How two places lie to one another, as far as a motion can change it."""
    shifts = (one.step_shift - other.step_shift, one.micro_shift - other.micro_shift)
    return (one.lane == other.lane, _first(one, other), *shifts)


def _first(one: Place, other: Place) -> bool:
    return (one.position, one.inner) < (other.position, other.inner)
