"""Room: what is in use is counted one by one; no run stands still for want of room, or holds more than there is.

A place is taken by the instance that first writes a cell, or puts an entry on a queue, and given back when every
instance that touches that cell, or takes that entry off, has run. An instance that would take one place too many waits:
the i-th place, in the order of the source, for that of ``i - capacity`` to be given back. Of a pool the cells of all
its parts are counted together.

This layer knows no edges: it looks at who touches which cell of a run, and counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from steptrace.check.validation.finding import Finding, Spot
from steptrace.check.validation.runs import Run, cell_of
from steptrace.check.validation.sides import Touch
from steptrace.diag.loc import Loc
from steptrace.diag.validation import RoomError
from steptrace.ir import ResourceKind
from steptrace.ir.resource import Resource, parts_of_pool


@dataclass(frozen=True, slots=True)
class Holding:
    """A place that is in use.

    Attributes:
      first: the instance that takes it.
      uses: all that must have run before it is given back.
    """

    first: int
    uses: frozenset[int]


@dataclass(frozen=True, slots=True)
class Store:
    """A resource with a capacity, and the places of it that a run takes, in the order of the source."""

    resource: Resource
    holdings: tuple[Holding, ...]


def check_room(run: Run) -> Finding | None:
    """The first place of a run of a schedule that is never free when it is needed, None if each is in time."""
    stores = tuple(_stores(run))
    if not stores:
        return None
    line, heads = _line(run, stores)
    if heads:
        return None if any(run.sites[head].kind.polls for head in heads) else _stuck(run, stores, line, heads)
    return next((found for store in stores if (found := _counted(run, store, line)) is not None), None)


def _stores(run: Run) -> Iterator[Store]:
    table = run.side.program.resource_table()
    if not any(resource.capacity for resource in table.values()):
        return
    cells, queues = _holdings(run)
    order = {position: at for at, position in enumerate(run.reference)}
    for resource in table.values():
        names = parts_of_pool(resource, cells) or (resource.name,)
        found = [one for name in names for one in (*cells.get(name, ()), *queues.get(name, ()))]
        if resource.capacity and found:
            yield Store(resource, tuple(sorted(found, key=lambda holding: order[holding.first])))


def _holdings(run: Run) -> tuple[dict[str, list[Holding]], dict[str, list[Holding]]]:
    """The places that are taken: of resources with cells, and of queues whose entries are told apart."""
    touched: dict[tuple[str, int], list[tuple[int, Touch]]] = defaultdict(list)
    pushes: dict[str, list[int]] = defaultdict(list)
    pops: dict[str, list[int]] = defaultdict(list)
    for position in run.reference:
        for touch in run.sites[position].touches:
            index = cell_of(touch, run.lanes.instances[position])
            if touch.kind is ResourceKind.CELL and index is not None:
                touched[touch.leaf, index[0]].append((position, touch))
            elif touch.kind is ResourceKind.FIFO and touch.writes:
                (pops if touch.reads else pushes)[touch.leaf].append(position)
    cells: dict[str, list[Holding]] = defaultdict(list)
    for (leaf, _), touches in touched.items():
        first = next((position for position, touch in touches if touch.writes), None)
        if first is not None:
            cells[leaf].append(Holding(first, frozenset(position for position, _ in touches)))
    queues = {
        leaf: [Holding(push, frozenset((push, pop))) for push, pop in zip(ends, pops[leaf], strict=True)]
        for leaf, ends in pushes.items()
        if len(ends) == len(pops[leaf])
    }
    return cells, queues


def _line(run: Run, stores: tuple[Store, ...]) -> tuple[list[int], list[int]]:
    """An order in which the run can happen with what room there is; and where its lanes stand still, if they do."""
    waits: dict[int, list[frozenset[int]]] = defaultdict(list)
    for store in stores:
        for earlier, holding in zip(store.holdings, store.holdings[store.resource.capacity :], strict=False):
            waits[holding.first].append(earlier.uses - {holding.first})
    lanes = list(run.lanes.lanes.values())
    home = {position: number for number, lane in enumerate(lanes) for position in lane}
    at, line, done = [0] * len(lanes), list[int](), set[int]()
    moved = True
    while moved:
        moved = False
        for number, lane in enumerate(lanes):
            while at[number] < len(lane):
                position = lane[at[number]]
                ready = all(one in done or home[one] == number for one, _ in run.needs[position])
                if not ready or any(not uses <= done for uses in waits[position]):
                    break
                done.add(position)
                line.append(position)
                at[number] += 1
                moved = True
    return line, [lane[at[number]] for number, lane in enumerate(lanes) if at[number] < len(lane)]


def _counted(run: Run, store: Store, line: list[int]) -> Finding | None:
    """Counts what is in use along a line."""
    place = {position: at for at, position in enumerate(line)}
    begun = sorted(store.holdings, key=lambda holding: place[holding.first])
    for holding in begun:
        now = place[holding.first]
        live = [one for one in begun if place[one.first] <= now <= max(map(place.__getitem__, one.uses))]
        if len(live) > store.resource.capacity:
            return _finding(run, store, live)
    return None


def _stuck(run: Run, stores: tuple[Store, ...], line: list[int], heads: list[int]) -> Finding | None:
    """Who waits for a place that nobody gives back, and who holds it."""
    done = set(line)
    for store in stores:
        waiting = [one for one in store.holdings if one.first in heads]
        live = [one for one in store.holdings if one.first in done and not one.uses <= done]
        if waiting and live:
            return _finding(run, store, [*live, waiting[0]])
    return None


def _finding(run: Run, store: Store, live: list[Holding]) -> Finding:
    name, capacity = store.resource.name, store.resource.capacity
    last = live[-1].first
    message = f"`{name}` has room for {capacity}, and {run.text(last)} would need {len(live)} at a time"
    spots = [
        Spot(f"{run.text(one.first)} has taken a place, and {run.text(_end(run, one))} gives it back", _loc(run, one))
        for one in live[:-1]
    ]
    return Finding(RoomError, message, run.setting, (*spots, Spot(f"{run.text(last)} waits", _loc(run, live[-1]))))


def _end(run: Run, holding: Holding) -> int:
    """The last use of a place, in the order of the source."""
    return max(holding.uses, key=run.reference.index)


def _loc(run: Run, holding: Holding) -> Loc | None:
    return run.sites[holding.first].op.loc
