"""A schedule rolled out: its instances for given numbers of micro-batches, in the order in which lanes run them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from steptrace.ir.builtin import kinds_of
from steptrace.ir.kind import OpKind
from steptrace.ir.predicate import Always, And, Every, First, Flag, Has, Last, MicroIs, Not, Or, Predicate
from steptrace.ir.program import Loop, Op, Program, ops_of, walk

Key: TypeAlias = tuple[str, int, tuple[int, ...]]
"""An instance: op id, step, and its counters in the loops around it."""


@dataclass(frozen=True, slots=True)
class Place:
    """An op of the step and where it stands.

    Attributes:
      op: the op.
      kind: its row.
      loops: the loops around it, outermost first.
      asynchronous: where its work is finished later than its call returns; "" when the call waits for it.
    """

    op: Op
    kind: OpKind
    loops: tuple[Loop, ...]
    asynchronous: str


@dataclass(frozen=True)
class Sheet:
    """A program, made ready to be rolled out.

    Attributes:
      program: the program.
      kinds: the rows that it may use.
      places: the ops of its step by id.
      makers: for each value the ids of the ops that make it, with the position among their results.
      peeled: for a loop's op (by origin and position of the result), the peeled ops that stand for its first rounds.
      ahead: the largest number of steps that an op runs ahead.
    """

    program: Program
    kinds: Mapping[str, OpKind]
    places: dict[str, Place]
    makers: dict[str, list[tuple[str, int]]]
    peeled: dict[tuple[object, int | None], list[str]]
    ahead: int


def sheet_of(program: Program, kinds: Mapping[str, OpKind] | None = None) -> Sheet:
    """The sheet of a program; its rows may be handed in, where many programs share them."""
    kinds = kinds or kinds_of(program)
    places: dict[str, Place] = {}
    makers: dict[str, list[tuple[str, int]]] = {}
    peeled: dict[tuple[object, int | None], list[str]] = {}
    for op, loops in walk(program.body):
        kind = kinds[op.kind]
        places[op.id] = Place(op, kind, loops, "" if kind.blocking else kind.device or op.lane)
        for at, result in enumerate(op.results):
            makers.setdefault(result.name, []).append((op.id, at))
        if op.micro is not None:
            peeled.setdefault((op.origin, op.micro), []).append(op.id)
    ahead = max((node.shift for node in program.body if isinstance(node, Op)), default=0)
    return Sheet(program, kinds, places, makers, peeled, max(ahead, 0))


Stop: TypeAlias = tuple[str, int, tuple[int, ...] | None]
"""An instance, or with None for its counters: the place of an op in a step that its lane is past now."""


def stops(sheet: Sheet, counts: tuple[int, ...]) -> Iterator[Stop]:
    """What the lanes of a schedule come by, in the order of the text with its shifts; each lane has its own of these.

    An op outside of loops that is there is passed when it has run. One that its step lacks, and those inside a loop,
    are passed when their place is, whether or not they ran.

    Args:
      sheet: the program.
      counts: micro-batches of each step; its length is the number of steps.
    """
    steps = len(counts)
    for t in range(-sheet.ahead, steps):
        for node in sheet.program.body:
            if isinstance(node, Loop):
                if t >= 0:
                    for id, path in _rounds(node, counts[t], ()):
                        yield id, t, path
                    for op in ops_of(node.body):
                        yield op.id, t, None
                continue
            k = t + node.shift
            if not 0 <= k < steps:
                continue
            if node.micro is None:
                yield node.id, k, ()
            elif node.micro < counts[k]:
                yield node.id, k, (node.micro,)
            else:
                yield node.id, k, None


def instances(sheet: Sheet, counts: tuple[int, ...]) -> Iterator[Key]:
    """Every instance of a run, in the order of the text with its shifts."""
    for id, step, path in stops(sheet, counts):
        if path is not None:
            yield id, step, path


def _rounds(loop: Loop, micro_batches: int, path: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The instances of one run of a loop."""
    count = micro_batches if loop.kind == "micro_batches" else loop.count or 1
    ahead = max((node.shift for node in loop.body if isinstance(node, Op)), default=0)
    for u in range(-max(ahead, 0), count):
        for node in loop.body:
            if isinstance(node, Op):
                m = u + node.shift
                if loop.start <= m < count:
                    yield node.id, (*path, m)
            elif u >= loop.start:
                yield from _rounds(node, micro_batches, (*path, u))


def maker_of(sheet: Sheet, present: Callable[[Key], bool], name: str, step: int, path: tuple[int, ...]) -> Key | None:
    """The instance that makes a value in a step (with these counters), or None where there is none.

    A value of a loop's op in a round that was taken out of the loop is made by the peeled op; of the arms of a
    choice the one that runs makes it.

    Args:
      sheet: the program.
      present: whether an instance is there and its condition is true.
      name: the value.
      step: the step.
      path: counters of the user, those of its last loop already moved.
    """
    for id, at in sheet.makers.get(name, ()):
        place = sheet.places[id]
        op = place.op
        depth = len(place.loops) or int(op.micro is not None)
        wanted = path[:depth] if op.micro is None else (op.micro,)
        if present((id, step, wanted)):
            return id, step, wanted
        if place.loops and wanted and wanted[-1] < place.loops[-1].start:
            for other in sheet.peeled.get((op.origin, wanted[-1]), ()):
                if present((other, step, wanted[-1:])) and len(sheet.places[other].op.results) > at:
                    return other, step, wanted[-1:]
    return None


def truth(predicate: Predicate, key: Key, counts: tuple[int, ...], phase: int, flag: Callable[[str], bool]) -> bool:
    """Whether a condition is true for an instance.

    Args:
      predicate: the condition.
      key: the instance.
      counts: micro-batches of each step.
      phase: the step of the whole run at which this window begins.
      flag: whether a flag value, or a capability ``has(...)``, is true there.
    """
    _, step, path = key
    micro = path[-1] if path else -1
    match predicate:
        case Always():
            return True
        case First():
            return micro == 0
        case Last():
            return micro == counts[step] - 1
        case MicroIs(index):
            return micro == index
        case Every(period):
            return (phase + step + 1) % period == 0
        case Has(capability):
            return flag(f"has({capability})")
        case Flag(name):
            return flag(name)
        case Not(term):
            return not truth(term, key, counts, phase, flag)
        case And(terms):
            return all(truth(term, key, counts, phase, flag) for term in terms)
        case Or(terms):
            return any(truth(term, key, counts, phase, flag) for term in terms)
