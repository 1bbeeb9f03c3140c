"""The judge: whether every way in which a schedule can run gives what its source gives.

It shares no code with ``steptrace.check``, and asks another question. The checker looks at a schedule's edges, once
for all numbers of steps. The judge rolls the schedule out for given numbers of steps and micro-batches, and looks at
all orders of its events at once: whatever lanes, waits and devices leave open may happen either way round.

Each instance is work of its own on what it reads, nothing else is known about it (``steptrace.testing.dataflow``).
So all orders are equal exactly if in all of them each live instance reads what it reads in the source. For one read of
a cell that is a question about three instances: the writer w of the source must come before the reader r, and no
other writer of the cell may come between them. Another writer x may come between them in some order if and only if
neither x must come before w nor r before x. So nothing has to be searched, and no order is left out.

A schedule whose lanes wait for one another for ever, whose instances are not those of the source, or that may hold more
than a capacity allows is different. A value or an entry of a queue must be there when it is used: nothing but a wait
or the lane's own order sees to that. Of a polling op the flag is true only when its operand was there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from math import lcm
from typing import TypeAlias

from steptrace.ir.kind import OpKind
from steptrace.ir.program import Carry, Loop, Node, Op, Program
from steptrace.testing.facts import END, START, Facts, bits
from steptrace.testing.overlap import Lanes, Order, Wait, lanes_of, linearisation, order_of, shown, waiting_of
from steptrace.testing.runs import Run, Source
from steptrace.testing.unrolled import Sheet, sheet_of


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the judge says.

    Attributes:
      equal: whether every order of the schedule gives what the source gives, in all runs looked at.
      reason: how it differs; "" when equal.
      counts: micro-batches of each step in the run that shows it.
      facts: what the source computes under the flags that show it, None where flags play no part.
      witness: the events of one order that shows it, numbered as in ``Order``; empty where there is none.
    """

    equal: bool
    reason: str = ""
    counts: tuple[int, ...] = ()
    facts: Facts | None = None
    witness: tuple[int, ...] = ()


EQUAL = Verdict(True)

Window: TypeAlias = tuple[tuple[int, ...], int]
"""Micro-batches of each step, and the step of the whole run at which the window begins."""


def judge(
    source: Source,
    schedule: Program,
    waits: Sequence[Wait],
    windows: Iterable[Window] | None = None,
) -> Verdict:
    """Compares a schedule with its source over all orders of its events.

    Args:
      source: the reference of the schedule (the source with its laws and peeling applied in place), made ready.
      schedule: the schedule.
      waits: what its lanes wait for.
      windows: the runs to look at; ``windows_of`` by default.
    """
    sheet = sheet_of(schedule)
    chosen = windows_of(source, sheet, waits) if windows is None else windows
    changed = changed_ops(source, sheet)
    for counts, phase in chosen:
        verdict = judge_run(source.run(counts, phase), sheet, waits, changed)
        if not verdict.equal:
            return verdict
    return EQUAL


def bound_of(source: Source, sheet: Sheet, waits: Sequence[Wait]) -> int:
    """The number of steps by which a difference shows: max(D, L * S) + 2.

    D is the largest distance of a wait or between the cells that ops name, S the largest shift, L the number of lanes
    and devices. A shortest circle of waits visits each lane once, and from one lane to the next it can be S steps
    further ahead.
    """
    lanes = {place.op.lane for place in sheet.places.values()}
    devices = {place.asynchronous for place in sheet.places.values()} - {""}
    distance = max([source.distance, *(wait.distance for wait in waits)])
    return max(distance, (len(lanes) + len(devices)) * sheet.ahead) + 2


_MOST_PHASES = 12
"""How many places at which a window may begin are looked at."""


def phases_of(source: Source, steps: int) -> tuple[int, ...]:
    """Steps of the whole run at which a window begins, one for each pattern of its conditions ``every n``.

    At most twelve, from step 0 on; a common period beyond 240 is not followed to its end.
    """
    found: dict[tuple[bool, ...], int] = {}
    for phase in range(min(lcm(*source.periods), 240)):
        pattern = tuple((phase + k + 1) % period == 0 for period in source.periods for k in range(steps))
        found.setdefault(pattern, phase)
    return tuple(found.values())[:_MOST_PHASES]


_EXHAUSTIVE = 2
"""Steps up to which all vectors of counts are tried."""


def windows_of(source: Source, sheet: Sheet, waits: Sequence[Wait]) -> tuple[Window, ...]:
    """The runs that are looked at.

    Runs as long as the bound: micro-batch counts that rise, fall, alternate and stay, from one after the other of the
    places at which a window may begin, a run without loops from all. And runs of two steps with every count in 0 to 3.
    """
    steps = bound_of(source, sheet, waits)
    phases = phases_of(source, steps)
    if not any(isinstance(node, Loop) for node in source.program.body):
        return tuple(((1,) * steps, phase) for phase in phases)
    found: dict[Window, None] = {((2, 1, 3), 0): None}  # a short one first: most differences show in it
    for number, counts in enumerate(long_vectors(steps)):
        found[counts, phases[number % len(phases)]] = None
    vectors = product(range(4), repeat=min(_EXHAUSTIVE, steps))
    found |= {(counts, phases[number % len(phases)]): None for number, counts in enumerate(vectors)}
    return tuple(found)


def long_vectors(steps: int) -> tuple[tuple[int, ...], ...]:
    """Numbers of micro-batches for long runs: rising, falling, alternating, constant."""
    patterns = ((2, 1, 3, 0), (0, 1, 2, 3), (3, 2, 1, 0), (0, 3), (1, 0, 2), (2,), (1,), (3,), (0,))
    return tuple(tuple(pattern[at % len(pattern)] for at in range(steps)) for pattern in patterns)


def judge_run(run: Run, sheet: Sheet, waits: Sequence[Wait], changed: frozenset[str] = frozenset()) -> Verdict:
    """Compares one run; see ``judge``.

    Args:
      run: the run of the source.
      sheet: the schedule, made ready.
      waits: what its lanes wait for.
      changed: ids of ops that are not the same in source and schedule.
    """
    lanes = lanes_of(sheet, run)
    if lanes.difference:
        return Verdict(False, lanes.difference, run.counts)
    if changed:
        for facts in run.facts:
            one = next((at for at in bits(facts.live) if run.keys[at][0] in changed), None)
            if one is not None:
                return Verdict(False, f"{shown(run.keys[one])} is not what it is in the source", run.counts, facts)
    waiting = waiting_of(waits, lanes, run)
    order = order_of(lanes.orders, waiting, run.devices)
    if order.stuck:
        return _locked(run, order)
    if _surely_equal(run.orders, run.done, order):
        return EQUAL
    return next((found for facts in run.facts if not (found := _under(run, facts, lanes, waiting, order)).equal), EQUAL)


def _under(run: Run, facts: Facts, lanes: Lanes, waiting: list[list[int]], order: Order) -> Verdict:
    """Compares under one setting of the flags: what a true flag of a polling op says about the order is known to be so.

    An order that it contradicts cannot happen.
    """
    if facts.polled:
        known = [list(events) for events in waiting]
        for maker, poll in facts.polled:
            known[poll].append(len(run.keys) + maker if run.devices[maker] else maker)
        order = order_of(lanes.orders, known, run.devices)
        if order.stuck:
            return EQUAL
    return EQUAL if _surely_equal(facts.orders, facts.done, order) else _compare(run, facts, order)


def _locked(run: Run, order: Order) -> Verdict:
    heads = ", ".join(shown(run.keys[at]) for at in order.stuck)
    return Verdict(False, f"its lanes wait for ever: {heads} cannot run", run.counts)


def _surely_equal(orders: Sequence[int], done: dict[int, int], order: Order) -> bool:
    """Whether all conflicts around live reads are ordered as in the source."""
    past = order.past
    for at, before in enumerate(orders):
        if before & ~past[at]:
            return False
    return all(not before << len(orders) & ~past[at] for at, before in done.items())


def _compare(run: Run, facts: Facts, order: Order) -> Verdict:
    """The exact question, for one setting of the flags: does an order exist that differs?"""
    found = next(_differences(run, facts, order), None)
    if found is None:
        return EQUAL
    reason, early = found
    return Verdict(False, reason, run.counts, facts, tuple(linearisation(order, early)))


def _differences(run: Run, facts: Facts, order: Order) -> Iterator[tuple[str, tuple[int, ...]]]:
    """How orders may differ from the source: in words, and the events that show it when they come early."""
    past, keys = order.past, run.keys
    for at, before in enumerate(facts.after):
        for missing in bits(before & ~past[at]):
            yield f"{shown(keys[at])} may run before {shown(keys[missing])}", (at,)
    for reader, cell, writer, done in facts.reads:
        for unfinished in bits(done << len(keys) & ~past[reader]) if done else ():
            yield f"{shown(keys[reader])} may run before {shown(keys[unfinished - len(keys)])} is done", (reader,)
        known = past[writer] | 1 << writer if writer != START else 0
        for other in facts.writers.get(cell, ()):
            if other == reader or known >> other & 1:
                continue
            if reader == END or not past[other] >> reader & 1:
                name = cell[0] if cell[1] is None else f"{cell[0]}[{cell[1]}]"
                who = shown(keys[reader]) if reader != END else "the end"
                early = (other,) if writer == START else (writer, other)
                yield f"{who} may find `{name}` as {shown(keys[other])} leaves it", early
    yield from _overflows(run, facts, order)


def _overflows(run: Run, facts: Facts, order: Order) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Moments at which more entries are in use than a resource may hold."""
    past = order.past
    for capacity, entries in facts.lifetimes:
        for chosen in combinations(entries, capacity + 1):
            begun = 0
            for entry in chosen:
                begun |= past[entry.first]
            for last in chosen:
                others = sum(1 << entry.first for entry in chosen if entry is not last)
                if begun >> last.first & 1 or not all(entry.uses & ~(begun | others) for entry in chosen):
                    continue
                names = ", ".join(shown(run.keys[entry.first]) for entry in chosen)
                early = (*(entry.first for entry in chosen if entry is not last), last.first)
                yield f"more than {capacity} entries may be in use: those of {names}", early


def changed_ops(source: Source, sheet: Sheet) -> frozenset[str]:
    """Ids of the ops that do something else than in the source, place, lane and shift aside.

    Where what surrounds the step differs, that is all of them.
    """
    mine, theirs = source.program, sheet.program
    around = ("contract", "kinds", "carries", "prologue", "epilogue")
    if any(_bare(getattr(mine, name)) != _bare(getattr(theirs, name)) for name in around):
        return frozenset(source.sheet.places)
    found = set()
    for id, place in source.sheet.places.items():
        other = sheet.places.get(id)
        if other is not None and (other.op is not place.op) and _meaning(other.op) != _meaning(place.op):
            found.add(id)
    return frozenset(found)


def _meaning(op: Op) -> tuple[object, ...]:
    return op.kind, op.args, op.attrs, op.when, op.micro, tuple(result.name for result in op.results)


def _bare(part: object) -> object:
    """A part of a program without the lines it came from, and without what its text does not carry."""
    if isinstance(part, tuple):
        return tuple(_bare(one) for one in part)
    if isinstance(part, OpKind):
        return replace(part, loc=None, doc="", example="")
    if isinstance(part, Carry):
        return replace(part, loc=None)
    return _bare_node(part) if isinstance(part, Op | Loop) else part


def _bare_node(node: Node) -> object:
    if isinstance(node, Loop):
        return node.id, node.kind, node.over, node.count, node.start, tuple(_bare_node(inner) for inner in node.body)
    return (node.id, *_meaning(node))
