"""The ``grid`` view: what each lane runs when, for a few steps; time goes down, lanes go across."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from steptrace.check.edge import Edge
from steptrace.check.places import lane_of
from steptrace.check.units import is_stream, units_of
from steptrace.check.values import value_edges
from steptrace.ir.predicate import Always, And, Every, First, Last, MicroIs, Not, Or, Predicate
from steptrace.ir.program import Loop, Node, Op, Program

_LEGEND = "op.micro-batch@step; one entry takes one line of time; ? runs if its condition holds in the run"


@dataclass(frozen=True, slots=True)
class Entry:
    """One instance in the grid.

    Attributes:
      id: id of the op, or of a loop that is scheduled as a whole.
      lane: the lane that runs it.
      step: its step.
      micro: its micro-batch, None where it has none.
      token: how it is shown: ``fwd_bwd.0@3``.
    """

    id: str
    lane: str
    step: int
    micro: int | None
    token: str


def grid_view(
    program: Program,
    *,
    steps: int = 3,
    counts: Sequence[int] = (2,),
    edges: Iterable[Edge] | None = None,
    broken: Edge | None = None,
) -> str:
    """What each lane of a program runs, one entry a line of time, as text that ends with a line feed.

    Every entry takes one unit of time and starts as early as its lane and the edges allow, so the grid shows what may
    overlap, not how long it takes. A loop over epochs or mini-batches is one entry.

    Args:
      program: a program or a schedule.
      steps: how many steps to show.
      counts: micro-batches of the steps, repeated when there are fewer than steps.
      edges: what must come before what; by default what follows from values alone.
      broken: an edge that the schedule does not keep; the first two instances that it orders are marked.
    """
    vector = tuple(counts[step % len(counts)] for step in range(steps))
    entries = list(_entries(program, vector))
    known = tuple(value_edges(units_of(program)) if edges is None else edges)
    starts = _starts(entries, known)
    marked = _first_pair(entries, broken) if broken is not None else ()
    lanes = list(dict.fromkeys(entry.lane for entry in entries))
    rows = [["", *lanes]]
    for time in range(max(starts.values(), default=-1) + 1):
        shown = {entry.lane: entry for entry in entries if starts[entry] == time}
        rows.append([str(time), *(_cell(shown.get(lane), marked) for lane in lanes)])
    lines = [f"program {program.name}: {steps} steps of {', '.join(map(str, vector))} micro-batches", *_table(rows)]
    if broken is not None:
        lines.append(f"! broken: {broken.reason}")
    return "\n".join([*lines, _LEGEND]) + "\n"


def _cell(entry: Entry | None, marked: tuple[Entry, ...]) -> str:
    if entry is None:
        return "."
    return f"!{entry.token}" if entry in marked else entry.token


def _table(rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _entries(program: Program, counts: tuple[int, ...]) -> Iterator[Entry]:
    """The instances in the order of their lanes: turn after turn, each in the order of the step."""
    ahead = max((node.shift for node in program.body if isinstance(node, Op)), default=0)
    for turn in range(-max(ahead, 0), len(counts)):
        for node in program.body:
            step = turn + node.shift if isinstance(node, Op) else turn
            if not 0 <= step < len(counts):
                continue
            if isinstance(node, Loop) and is_stream(node):
                yield from _rounds(node, step, counts[step])
            elif not isinstance(node, Op) or node.micro is None or node.micro < counts[step]:
                yield from _entry(node, step, None if isinstance(node, Loop) else node.micro, counts[step])


def _rounds(loop: Loop, step: int, count: int) -> Iterator[Entry]:
    ahead = max((node.shift for node in loop.body if isinstance(node, Op)), default=0)
    for turn in range(-max(ahead, 0), count):
        for node in loop.body:
            micro = turn + node.shift if isinstance(node, Op) else turn
            if loop.start <= micro < count:
                yield from _entry(node, step, micro, count)


def _entry(node: Node, step: int, micro: int | None, count: int) -> Iterator[Entry]:
    runs = _holds(node.when, step, micro, count) if isinstance(node, Op) else True
    if runs is False:
        return
    peeled = isinstance(node, Op) and node.micro is not None
    name = node.id.removesuffix(".first") if peeled else node.id
    token = name if micro is None else f"{name}.{micro}"
    yield Entry(node.id, lane_of(node), step, micro, f"{token}@{step}" + ("?" if runs is None else ""))


def _holds(predicate: Predicate, step: int, micro: int | None, count: int) -> bool | None:
    """Whether a condition holds for an instance; None where only the run can say."""
    match predicate:
        case Always():
            return True
        case First():
            return micro == 0
        case Last():
            return micro == count - 1
        case MicroIs(index):
            return micro == index
        case Every(period):
            return (step + 1) % period == 0
        case Not(term):
            found = _holds(term, step, micro, count)
            return None if found is None else not found
        case And(terms) | Or(terms):
            settles = isinstance(predicate, Or)
            found_all = [_holds(term, step, micro, count) for term in terms]
            if settles in found_all:
                return settles
            return None if None in found_all else not settles
    return None


def _starts(entries: list[Entry], edges: tuple[Edge, ...]) -> dict[Entry, int]:
    """When each entry starts: one after the other on its lane, and after what edges put before it.

    Where a lane waits for what stands behind a waiting one, the first of them runs all the same: a grid is drawn also
    of a schedule that hangs.
    """
    waits = _waits(entries, edges)
    lines: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        lines[entry.lane].append(entry)
    at, free, starts = dict.fromkeys(lines, 0), dict.fromkeys(lines, 0), dict[Entry, int]()
    while any(at[lane] < len(line) for lane, line in lines.items()):
        heads = [line[at[lane]] for lane, line in lines.items() if at[lane] < len(line)]
        ready = [entry for entry in heads if all(before in starts for before in waits[entry])]
        for entry in ready or heads[:1]:
            after = [starts[before] + 1 for before in waits[entry] if before in starts]
            starts[entry] = max(free[entry.lane], *after) if after else free[entry.lane]
            free[entry.lane] = starts[entry] + 1
            at[entry.lane] += 1
    return starts


def _waits(entries: list[Entry], edges: tuple[Edge, ...]) -> dict[Entry, list[Entry]]:
    """For each entry those on other lanes that come before it."""
    by_step: dict[tuple[str, int], list[Entry]] = defaultdict(list)
    for entry in entries:
        by_step[entry.id, entry.step].append(entry)
    incoming: dict[str, list[Edge]] = defaultdict(list)
    for edge in edges:
        incoming[edge.after].append(edge)
    return {
        entry: [
            before
            for edge in incoming[entry.id]
            for before in by_step[edge.before, entry.step - edge.distance]
            if before.lane != entry.lane and _joined(edge, before, entry)
        ]
        for entry in entries
    }


def _joined(edge: Edge, before: Entry, after: Entry) -> bool:
    if edge.micro is None or before.micro is None or after.micro is None:
        return True
    return before.micro + edge.micro == after.micro


def _first_pair(entries: list[Entry], edge: Edge) -> tuple[Entry, ...]:
    """The first two instances that an edge orders, empty where none are shown."""
    for before in entries:
        for after in entries:
            ends = (before.id, after.id, after.step - before.step)
            if ends == (edge.before, edge.after, edge.distance) and _joined(edge, before, after):
                return (before, after)
    return ()
