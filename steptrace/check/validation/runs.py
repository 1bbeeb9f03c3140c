"""One run of a side: its lanes, the waits between them, and a line in which it can happen.

The waits are those that a schedule needs: two instances on different lanes that touch the same cell, one of them
writing, keep the order of the source; a value is made before it is used, and a condition before it is looked at, also
where it turns out false and nothing runs; what belongs to a step waits until the take knows that the step exists.
Every line that keeps the lanes and the waits orders all conflicts alike, so one is enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum

from steptrace.check.validation.instances import Instance, Lanes, Setting, lanes_of, value_key, where
from steptrace.check.validation.parts import RANK, RELEASE
from steptrace.check.validation.sides import Pair, Side, Site, Touch
from steptrace.ir import ResourceKind


class Bond(IntEnum):
    """Why one instance must come before another."""

    ORDER = 0
    """They touch the same thing and one of them writes: issued in this order."""
    DATA = 1
    """The second needs what the first writes: its work is finished only after that of the first."""
    DONE = 2
    """The second starts only when the work of the first is finished."""
    EXISTS = 3
    """The first tells whether the step of the second exists."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run.

    Attributes:
      pair: the schedule and its source.
      side: which of the two runs.
      setting: counts and flags.
      lanes: what each lane runs.
      sites: the op of each instance.
      identities: for each instance the one of the source that it stands for, None where the source has no such op.
      reference: the positions of the instances in the order of the source.
      needs: for each instance those that must come before it, each with the bond.
    """

    pair: Pair
    side: Side
    setting: Setting
    lanes: Lanes
    sites: tuple[Site, ...]
    identities: tuple[Instance | None, ...]
    reference: tuple[int, ...]
    needs: tuple[tuple[tuple[int, Bond], ...], ...]

    def text(self, position: int) -> str:
        """An instance in words: ``fwd_bwd@(1,0)``."""
        one = self.lanes.instances[position]
        return f"{self.sites[position].op.id}{where(one.step, one.path)}"


@dataclass(frozen=True, slots=True)
class Stuck:
    """A run that cannot go on: instances, each waiting for the next, and the last for the first again.

    Attributes:
      chain: pairs of an instance that waits and the one that it waits for, which stands behind the next one's waiter.
      polled: whether a flag of the run says that something was there which cannot have been.
    """

    chain: tuple[tuple[int, int], ...]
    polled: bool


def run_of(pair: Pair, side: Side, setting: Setting) -> Run:
    """A run of one side of a pair. Ops that the source does not have come after all others of their step."""
    lanes = lanes_of(side, setting)
    keys = [_key(pair, side, one) for one in lanes.instances]
    reference = tuple(sorted(range(len(keys)), key=keys.__getitem__))
    sites = tuple([side.sites[one.site] for one in lanes.instances])
    if side is pair.source:
        identities: tuple[Instance | None, ...] = lanes.instances
    else:
        origins = pair.origins
        identities = tuple(
            [
                None if (origin := origins[number]) is None else Instance(origin.number, step, path)
                for number, step, path in lanes.instances
            ]
        )
    return Run(pair, side, setting, lanes, sites, identities, reference, _Needs(side, setting, lanes).of(reference))


def line_of(run: Run) -> tuple[int, ...] | Stuck:
    """An order in which the run can happen, or where it is stuck."""
    line: list[int] = []
    done = bytearray(len(run.lanes.instances))
    lane_of = [0] * len(done)
    lines = list(run.lanes.lanes.values())
    for number, lane in enumerate(lines):
        for position in lane:
            lane_of[position] = number
    waits = [
        [before for before, _ in needs if lane_of[before] != lane_of[position]]
        for position, needs in enumerate(run.needs)
    ]
    heads = [0] * len(lines)
    moved = True
    while moved:
        moved = False
        for number, lane in enumerate(lines):
            while heads[number] < len(lane):
                position = lane[heads[number]]
                if not all(done[before] for before in waits[position]):
                    break
                done[position] = 1
                line.append(position)
                heads[number] += 1
                moved = True
    if len(line) == len(done):
        return tuple(line)
    return _stuck(run, lines, heads, lane_of, [[b for b in wait if not done[b]] for wait in waits])


def _stuck(
    run: Run, lines: list[tuple[int, ...]], heads: list[int], lane_of: list[int], open_: list[list[int]]
) -> Stuck:
    number = next(at for at, lane in enumerate(lines) if heads[at] < len(lane))
    seen: list[int] = []
    chain: list[tuple[int, int]] = []
    while number not in seen:
        seen.append(number)
        head = lines[number][heads[number]]
        chain.append((head, open_[head][0]))
        number = lane_of[open_[head][0]]
    ring = tuple(chain[seen.index(number) :])
    heads_open = [lane[heads[at]] for at, lane in enumerate(lines) if heads[at] < len(lane)]
    return Stuck(ring, any(run.sites[head].kind.polls for head in heads_open))


def _key(pair: Pair, side: Side, one: Instance) -> tuple[int, ...]:
    """The place of an instance in the order of the source."""
    site = side.sites[one.site]
    origin = pair.origin(side, site)
    if origin is None:
        return (one.step, len(pair.source.sites), *one.path, one.site)
    key: list[int] = [one.step]
    last = len(origin.places) - 1
    for at, place in enumerate(origin.places):
        key.append(_BEHIND_A_ROUND if site.part == RELEASE and at == last else place)
        if at < len(one.path) and at < len(origin.loops):
            key.append(one.path[at])
    return (*key, RANK[site.part])


_BEHIND_A_ROUND = 1 << 30
"""Where in its round a buffer is given back: after every op of the source."""


@dataclass(slots=True)
class _Cell:
    """Who wrote a cell last, and who has read it since."""

    writer: int | None = None
    readers: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Leaf:
    """The cells of a resource by index, and the accesses that touched all of it (index None)."""

    cells: dict[tuple[int, ...] | None, _Cell] = field(default_factory=dict)
    pushed: int | None = None


class _Needs:
    """Goes through the instances in the order of the source and notes, for each, whom it must follow."""

    def __init__(self, side: Side, setting: Setting, lanes: Lanes) -> None:
        self.side = side
        self.setting = setting
        self.lanes = lanes
        self.leaves = {touch.leaf: _Leaf() for touches in side.contested for touch in touches}
        self.makers: dict[tuple[object, ...], int] = {}
        self.takers: dict[int, int] = {}
        self.buffers: dict[tuple[object, ...], tuple[object, ...]] = {}
        self.readers: dict[tuple[object, ...], list[int]] = {}

    def of(self, reference: tuple[int, ...]) -> tuple[tuple[tuple[int, Bond], ...], ...]:
        found: list[tuple[tuple[int, Bond], ...]] = [()] * len(reference)
        for position in reference:
            needs: dict[int, Bond] = {}
            self._note(position, needs)
            needs.pop(position, None)
            found[position] = tuple(needs.items())
        for position, keys in self.lanes.gates.items():
            makers = [self.makers[key] for key in keys if key in self.makers]
            found[position] += tuple((maker, Bond.DONE) for maker in makers if maker != position)
        for first, before in self._after_prologue():
            found[first] += tuple((one, Bond.ORDER) for one in before if one not in dict(found[first]))
        return tuple(found)

    def _after_prologue(self) -> Iterator[tuple[int, list[int]]]:
        """The first instance of each lane after the prologue, which runs by itself, with the instances of that."""
        regions = [self.side.sites[one.site].region for one in self.lanes.instances]
        before = [position for position, region in enumerate(regions) if region == "before"]
        for lane in self.lanes.lanes.values():
            first = next((position for position in lane if regions[position] != "before"), None)
            if before and first is not None:
                yield first, before

    def _note(self, position: int, needs: dict[int, Bond]) -> None:
        one = self.lanes.instances[position]
        site = self.side.sites[one.site]
        for touch in self.side.contested[one.site]:
            leaf = self.leaves[touch.leaf]
            if touch.kind is ResourceKind.FIFO:
                _queue(leaf, position, touch, needs)
            else:
                _touch(leaf, position, cell_of(touch, one), touch, needs)
        polls = site.kind.polls
        uses = self.side.uses[one.site]
        if uses and (not polls or self._held(site, one)):
            for use in uses:
                maker = self.makers.get(value_key(use, one))
                if maker is not None:
                    _add(needs, maker, Bond.DATA)
        if not polls and one.step in self.takers and site.region == "step":
            _add(needs, self.takers[one.step], Bond.EXISTS)
        if not polls or self._held(site, one):
            self._read(site, one, position, needs)
        for at in range(len(site.op.results)):
            self.makers[(*site.value(at), one.step, one.path)] = position
        if site.number in self.side.taking:
            self.takers[one.step] = position

    def _read(self, site: Site, one: Instance, position: int, needs: dict[int, Bond]) -> None:
        """Notes who reads which buffer; who gives one back follows all of these, once their work is finished.

        A micro-batch that is made from another, and a token of one that was shipped, lie in the same buffer.
        """
        keys = [value_key(use, one) for use in self.side.uses[one.site]]
        roots = dict.fromkeys(self.buffers[key] for key in keys if key in self.buffers)
        if site.part == RELEASE:
            for reader in (reader for root in roots for reader in self.readers[root]):
                _add(needs, reader, Bond.DONE)
            return
        for root in roots:
            self.readers[root].append(position)
        for at, given in enumerate(site.kind.results):
            if given.base in ("micro_batch", "token"):
                made = (*site.value(at), one.step, one.path)
                self.buffers[made] = next(iter(roots), made)
                self.readers.setdefault(self.buffers[made], [])

    def _held(self, site: Site, one: Instance) -> bool:
        """Whether the flag of a polling op says that its operand was there."""
        last = len(site.op.results) - 1
        return (*site.value(last), one.step, one.path) in self.setting.flags


def _add(needs: dict[int, Bond], before: int, bond: Bond) -> None:
    if bond >= needs.get(before, Bond.ORDER):
        needs[before] = bond


def _touch(leaf: _Leaf, position: int, index: tuple[int, ...] | None, touch: Touch, needs: dict[int, Bond]) -> None:
    """Whoever writes follows those that wrote or read before; whoever reads, those that wrote."""
    cells = leaf.cells
    near = cells.values() if index is None else (cells.get(None), cells.get(index))
    bond = Bond.DONE if touch.awaits else Bond.DATA if touch.reads else Bond.ORDER
    for cell in near:
        if cell is None:
            continue
        if cell.writer is not None:
            _add(needs, cell.writer, bond)
        if touch.writes:
            for reader in cell.readers:
                needs.setdefault(reader, Bond.ORDER)
    if touch.writes and index is None:
        cells.clear()
    own = cells.get(index)
    if own is None:
        own = cells[index] = _Cell()
    if touch.writes:
        own.writer, own.readers = position, []
    else:
        own.readers.append(position)


def _queue(leaf: _Leaf, position: int, touch: Touch, needs: dict[int, Bond]) -> None:
    """Pushes follow pushes; pops follow pops and the push before them; both follow those that only looked."""
    cell = leaf.cells.setdefault(None, _Cell())
    takes = touch.reads or touch.awaits
    if leaf.pushed is not None:
        _add(needs, leaf.pushed, Bond.DATA if takes else Bond.ORDER)
    if cell.writer is not None and takes:
        _add(needs, cell.writer, Bond.DATA)
    if not touch.writes:
        cell.readers.append(position)
        return
    for reader in cell.readers:
        needs.setdefault(reader, Bond.ORDER)
    if takes:
        cell.writer = position
    else:
        leaf.pushed = position


def cell_of(touch: Touch, one: Instance) -> tuple[int, ...] | None:
    """The cell that an instance touches, None for all; what lies before the first step is the cell of -1."""
    if touch.step is None:
        return None
    step = max(one.step + touch.step, -1)
    return (step,) if touch.micro is None else (step, (one.path[-1] if one.path else 0) + touch.micro)
