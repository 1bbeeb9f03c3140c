"""Whether a schedule keeps its reference: order on each lane, no lock-up between lanes, room, and no hold-up."""

from __future__ import annotations

from collections.abc import Iterator

from steptrace.check.edge import Edge, EdgeKind
from steptrace.check.edges import edges_of
from steptrace.check.graph import Hop, find_cycle
from steptrace.check.holdup import hold_ups
from steptrace.check.legal import allowing_staleness, legal_places
from steptrace.check.places import broken, places_of, slack
from steptrace.check.reasons import ends_of, instance, noun, older
from steptrace.check.reference import reference_of
from steptrace.check.units import units_of
from steptrace.check.values import poll_edges
from steptrace.diag.base import Note, SteptraceError
from steptrace.diag.loc import Loc
from steptrace.diag.schedule import (
    CapacityError,
    DeadlockError,
    LoopLanesError,
    NegativeShiftError,
    OrderError,
)
from steptrace.ir.program import Program, ops_of
from steptrace.ir.resource import ResourceKind


def check_schedule(program: Program, source: Program) -> Program:
    """Refuses a program that is not a legal schedule of ``source``; returns its reference.

    Raises:
      SteptraceError: its ops are not those of the source (see ``reference_of``), or their order is not allowed (see
        ``check_order``).
    """
    reference = reference_of(program, source)
    check_order(program, reference)
    return reference


def check_order(program: Program, reference: Program) -> None:
    """Refuses a schedule that is not legal, live and within its capacities, for any number of steps.

    Args:
      program: the schedule.
      reference: its reference: the same ops (``reference_of``).

    Raises:
      SteptraceError: the first of ``problems``.
    """
    for problem in problems(program, reference):
        raise problem


def problems(program: Program, reference: Program) -> Iterator[SteptraceError]:
    """What is wrong with the order of a schedule: each broken edge; if none, a lock-up of the lanes; each hold-up.

    Edges between ops of one lane are compared in closed form. Between lanes an edge becomes a wait, which keeps it
    whatever the timing, so there the one question is whether the waits can be met: a circle over the lanes' orders and
    the edges answers it (``steptrace.check.graph``). Both hold for all numbers of steps and micro-batches.
    """
    found = list(_backward(program))
    if found:
        yield from found
        return
    try:
        places_of(program)
    except LoopLanesError as error:
        yield error
        return
    edges = edges_of(reference, program)
    wrong = list(broken(program, (*edges, *poll_edges(units_of(reference)))))
    for edge in wrong:
        yield order_error(program, reference, edge)
    circle = () if wrong else find_cycle(program, edges)
    if circle:
        yield _lock_up(program, reference, circle)
    yield from hold_ups(program)


def keeps_order(program: Program, reference: Program) -> bool:
    """Whether ``problems`` finds nothing. It puts nothing in words, so a search may ask it of many schedules."""
    if next(_backward(program), None) is not None:
        return False
    try:
        places_of(program)
    except LoopLanesError:
        return False
    edges = edges_of(reference, program)
    if next(broken(program, (*edges, *poll_edges(units_of(reference)))), None) is not None:
        return False
    return not find_cycle(program, edges) and next(hold_ups(program), None) is None


def _backward(program: Program) -> Iterator[SteptraceError]:
    for op in ops_of(program.body):
        if op.shift < 0:
            message = f"`{op.id}` runs {-op.shift} behind its place, so its last instances never run"
            yield NegativeShiftError(message, loc=op.loc, help="shift the others ahead instead")


def order_error(program: Program, reference: Program, edge: Edge) -> OrderError | CapacityError:
    """The diagnostic of an edge that a lane's order does not keep: instances, reason, slack, legal places, way out.

    Args:
      program: the schedule, with the ops where they are not allowed.
      reference: its reference.
      edge: the broken edge.
    """
    first, second = ends_of(edge)
    places = places_of(program)
    loc_a, loc_b = _loc(reference, edge.before), _loc(reference, edge.after)
    if edge.kind is EdgeKind.CAPACITY:
        message = f"{second} would need room in `{edge.what}` before {first} makes it"
        return CapacityError(message, loc=loc_b, notes=(Note(edge.reason, loc_a),), help=_capacity_help(edge))
    mover = _moved(program, reference, edge)
    message = f"{second} would run before {first}"
    room = legal_places(program, reference, mover)
    turns = slack(edge, places[edge.before], places[edge.after])
    notes = [Note(edge.reason, loc_a), Note(_slack_words(turns, edge, places[edge.after].lane))]
    notes.append(Note(f"legal for `{mover}`: {room}"))
    return OrderError(message, loc=loc_b, notes=tuple(notes), help=_order_help(program, reference, edge, mover))


def _order_help(program: Program, reference: Program, edge: Edge, mover: str) -> str:
    staleness = allowing_staleness(program, reference, edge)
    if staleness is not None:
        return f"with staleness={staleness} it would be legal: {older(staleness - reference.contract.staleness)}"
    shifted = places_of(program)[mover]
    if shifted.step_shift or shifted.micro_shift:
        room = legal_places(program, reference, mover, shift=0)
        return f"run with its own {room.unit}, not ahead of it, `{mover}` may stand {room}" if room.possible else ""
    return ""


def _moved(program: Program, reference: Program, edge: Edge) -> str:
    """Which end of a broken edge to speak of.

    One that could mend it, and of two such ends the one that the schedule shifted, or moved the further: an op in a
    loop over micro-batches cannot leave it, and an op between two others that have moved may have no place at all.
    """
    places = places_of(program)
    a, b = places[edge.before], places[edge.after]
    ends = [end for end in (b, a) if end.loop is None or a.loop == b.loop]
    ends = [end for end in ends if legal_places(program, reference, end.id).possible] or ends
    source = {unit.id: unit.index for unit in units_of(reference)}
    here = {id: at for at, id in enumerate(places)}
    return max(ends, key=lambda end: (end.step_shift + end.micro_shift, abs(here[end.id] - source[end.id]))).id


def _slack_words(turns: int, edge: Edge, lane: str) -> str:
    unit = "micro-batch" if edge.micro is not None else "step"
    if turns == 0:
        return f"lane {lane} comes to `{edge.after}` first, in one pass over the {_BODY[unit]} (slack 0)"
    count = f"{-turns} {unit}" + ("s" if unit == "step" and turns < -1 else "es" if turns < -1 else "")
    return f"`{edge.after}` is {count} too early, wherever it stands in the {_BODY[unit]} (slack {turns})"


_BODY = {"step": "step", "micro-batch": "loop"}


def _entries(reference: Program, edge: Edge) -> str:
    """How much room the capacity of an edge is, in words."""
    cell = reference.resource_table()[edge.what.partition("[")[0]].kind is ResourceKind.CELL
    one, several = ("step", "steps") if cell else ("entry", "entries")
    return f"{edge.note} {one if edge.note == '1' else several}"


def _capacity_help(edge: Edge) -> str:
    name = edge.what.partition("[")[0]
    return f"release earlier, take less far ahead, or declare `{name}` with a capacity of {int(edge.note) + 1}"


def _lock_up(program: Program, reference: Program, circle: tuple[Hop, ...]) -> SteptraceError:
    full = next((hop.edge for hop in circle if hop.edge is not None and hop.edge.kind is EdgeKind.CAPACITY), None)
    notes = tuple(_told(program, reference, circle))
    lanes = list(dict.fromkeys(places_of(program)[hop.before].lane for hop in circle))
    if full is not None:
        name = full.what.partition("[")[0]
        message = f"`{name}` would have to hold more than {_entries(reference, full)} at a time"
        return CapacityError(message, loc=_loc(reference, full.after), notes=notes, help=_capacity_help(full))
    message = f"lanes {' and '.join(lanes)} would wait for one another for ever"
    help = "move one of these ops past its neighbour, or to another lane"
    return DeadlockError(message, loc=_loc(reference, circle[0].after), notes=notes, help=help)


def _told(program: Program, reference: Program, circle: tuple[Hop, ...]) -> Iterator[Note]:
    """The circle, one line for each link."""
    places = places_of(program)
    step = 0
    for hop in circle:
        a, b = places[hop.before], places[hop.after]
        then = step + hop.turns + b.step_shift - a.step_shift
        inner = hop.edge is not None and hop.edge.micro is not None
        here, there = instance(a.id, step), instance(b.id, then)
        if hop.edge is not None:
            ends = ends_of(hop.edge) if inner else (here, there)
            yield Note(f"{ends[1]} waits for {ends[0]}: {_why(hop.edge)}", _loc(reference, hop.after))
        else:
            yield Note(f"lane {hop.lane} runs {here} before {there}", _loc(reference, hop.after))
        step = then


def _why(edge: Edge) -> str:
    """The reason of an edge in a few words."""
    words = {
        EdgeKind.VALUE: "it uses `{}`",
        EdgeKind.CAPACITY: "it needs a place in `{}`",
        EdgeKind.LIFETIME: "it gives back `{}`, once it is read",
        EdgeKind.EXISTS: "the step may not exist",
        EdgeKind.BARRIER: "one of them declares no effects",
    }
    if edge.kind in words:
        return words[edge.kind].format(edge.what)
    verb = {EdgeKind.RAW: "it needs", EdgeKind.WAR: "it overwrites"}.get(edge.kind, "both touch")
    return f"{verb} {noun(edge.what)}"


def _loc(program: Program, id: str) -> Loc | None:
    return units_of(program)[id].loc
