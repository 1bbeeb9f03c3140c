"""What happens before what: the order that lanes, waits and devices impose on the events of a schedule.

Every instance has an issue; one whose call returns before its work is finished has a done as well, on its device.
Anything that this order leaves open may happen either way round, at any speed of any lane.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from steptrace.testing.runs import Run
from steptrace.testing.unrolled import Key, Sheet, stops


class Wait(NamedTuple):
    """``after`` of step k waits until the lane of ``before`` is past its place of step ``k - distance``.

    Attributes:
      before: id of the op, or of a loop, that is waited for.
      after: id of the op, or of a loop, that waits.
      distance: steps from one to the other.
      micro: micro-batches from one to the other, where both are in one loop over micro-batches and in one
        step; None for all micro-batches of the step.
      done: whether it waits until work that ``before`` sent off in that step is finished.
    """

    before: str
    after: str
    distance: int
    micro: int | None = None
    done: bool = False

    def __str__(self) -> str:
        apart = f"{self.distance}" if self.micro is None else f"{self.distance}, {self.micro}"
        return f"{self.after} waits for {self.before} ({apart}{', done' if self.done else ''})"


@dataclass(frozen=True, slots=True)
class Lanes:
    """What the lanes of a schedule run.

    Attributes:
      orders: the instances of each lane, as numbers of the source's run.
      passed: for each op and step, what its lane ran last when it was past that place.
      difference: how the instances differ from those of the source, "" if they do not.
    """

    orders: tuple[list[int], ...]
    passed: dict[tuple[str, int], int | None]
    difference: str = ""


@dataclass(frozen=True, slots=True)
class Order:
    """The order of the events of a run.

    Events are numbered: the issue of instance i is i, its done is i plus the number of instances.

    Attributes:
      past: for each event, mask of the events that happen before it.
      sequence: the events in one order that is possible.
      stuck: the instances at the head of a lane that wait for ever; empty when the schedule ends.
    """

    past: list[int]
    sequence: list[int]
    stuck: tuple[int, ...]


def lanes_of(sheet: Sheet, run: Run) -> Lanes:
    """The instances that each lane of a schedule runs."""
    orders: dict[str, list[int]] = {}
    passed: dict[tuple[str, int], int | None] = {}
    index, seen = run.index, 0
    lane_of = {id: place.op.lane for id, place in sheet.places.items()}
    for id, step, path in stops(sheet, run.counts):
        order = orders.setdefault(lane_of[id], [])
        if path is None:
            passed[id, step] = order[-1] if order else None
            continue
        at = index.get((id, step, path))
        if at is None:
            return Lanes((), {}, f"{shown((id, step, path))} runs, which the source does not run")
        if seen >> at & 1:
            return Lanes((), {}, f"{shown((id, step, path))} runs twice")
        seen |= 1 << at
        order.append(at)
        passed[id, step] = at
    if seen != (1 << len(run.keys)) - 1:
        missing = next(at for at in range(len(run.keys)) if not seen >> at & 1)
        return Lanes((), {}, f"{shown(run.keys[missing])} never runs")
    return Lanes(tuple(orders.values()), passed)


def shown(key: Key) -> str:
    """An instance in words: ``fwd_bwd@(1, 0)``."""
    id, step, path = key
    return f"{id}@({', '.join(map(str, (step, *path)))})" if path else f"{id}@{step}"


def waiting_of(waits: Iterable[Wait], lanes: Lanes, run: Run) -> list[list[int]]:
    """For each instance, the events that it waits for."""
    found: list[list[int]] = [[] for _ in run.keys]
    size, steps = len(run.keys), len(run.counts)
    for before, after, distance, micro, done in waits:
        source = _ops(run, before)[-1]
        for target in _ops(run, after):
            for at in run.by_op.get(target, ()):
                _, step, path = run.keys[at]
                if micro is not None and path:
                    event = run.index.get((source, step, (*path[:-1], path[-1] - micro)))
                    late = event
                else:
                    if not 0 <= step - distance < steps:
                        continue
                    event = lanes.passed[source, step - distance]
                    late = run.last_of.get((source, step - distance))
                if event is not None:
                    found[at].append(event)
                if done and late is not None and run.devices[late]:
                    found[at].append(size + late)
    return found


def _ops(run: Run, unit: str) -> list[str]:
    """An op, or all ops inside a loop."""
    places = run.source.sheet.places
    if unit in places:
        return [unit]
    return [id for id, place in places.items() if any(loop.id == unit for loop in place.loops)]


def order_of(lanes: Sequence[Sequence[int]], waiting: Sequence[Sequence[int]], devices: Sequence[str]) -> Order:
    """Lets every lane run as far as its waits allow; notes for each event all that must have happened.

    Args:
      lanes: the instances of each lane, in order.
      waiting: for each instance, the events that it waits for.
      devices: for each instance, the device that finishes its work after its call, or "".
    """
    size = len(devices)
    past = [0] * (2 * size)
    sequence: list[int] = []
    happened = 0
    queued: dict[str, dict[int, list[int]]] = {}
    heads, held = [0] * len(lanes), [0] * len(lanes)
    masks = [mask_of(events) for events in waiting]
    moved = True
    while moved:
        moved = False
        for number, lane in enumerate(lanes):
            head, known, end = heads[number], held[number], len(lane)
            while head < end:
                at = lane[head]
                if masks[at] & ~happened:
                    break
                for event in waiting[at]:
                    known |= past[event] | 1 << event
                past[at] = known
                known |= 1 << at
                happened |= 1 << at
                sequence.append(at)
                if devices[at]:
                    queues = queued.setdefault(devices[at], {})
                    past[size + at] = _before_done(size, known, queues, past)
                    queues.setdefault(number, []).append(at)
                    happened |= 1 << size + at
                    sequence.append(size + at)
                head += 1
            moved = moved or head != heads[number]
            heads[number], held[number] = head, known
    stuck = tuple(lane[head] for lane, head in zip(lanes, heads, strict=True) if head < len(lane))
    return Order(past, sequence, stuck)


def _before_done(size: int, known: int, queues: dict[int, list[int]], past: list[int]) -> int:
    """What happens before a done: its issue, and the done of all that was surely issued before on its device."""
    before = known
    for queue in queues.values():
        last = next((other for other in reversed(queue) if known >> other & 1), None)
        if last is not None:
            before |= past[size + last] | 1 << size + last
    return before


def mask_of(events: Iterable[int]) -> int:
    """The events as a mask."""
    mask = 0
    for event in events:
        mask |= 1 << event
    return mask


def linearisation(order: Order, early: Sequence[int]) -> Iterator[int]:
    """The events in an order that is possible: these as early as can be, one after the other, then the rest."""
    seen = 0
    for wanted in early:
        before = order.past[wanted] | 1 << wanted
        yield from (event for event in order.sequence if before >> event & 1 and not seen >> event & 1)
        seen |= before
    yield from (event for event in order.sequence if not seen >> event & 1)
