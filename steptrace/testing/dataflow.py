"""What the source computes: who reads whose writes, which of it can be seen, and so which orders matter.

A run of the source is a list of instances. Each live instance, one whose work reaches something that can be seen, has
reads: a cell and the instance that wrote it. Work is uninterpreted: an instance given other inputs gives other
results. So an order of the same instances is equal if and only if each live instance reads what it reads in the source.

What can be seen: channels; the order in which a queue is filled and emptied; that a buffer is given back once all that
reads it is done; and at the end of the run whatever an op of a later step, or one after the last step, could read: a
resource that some op reads, a cell ``R[k]`` that a step after the last one reads, a carried value. A write that is
overwritten before anything reads it is dead, and so is one to a resource that no op reads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from steptrace.ir.predicate import flags_of
from steptrace.ir.resource import ResourceKind, parts_of_pool
from steptrace.testing.facts import END, START, Facts, FlagKey, Lifetime, LiveRead, bits
from steptrace.testing.touches import Cell, Touch, named_cell
from steptrace.testing.unrolled import Key

if TYPE_CHECKING:
    from steptrace.testing.runs import Run


_IN_BUFFERS = ("micro_batch", "token")
_BUFFER = "the buffer of a micro-batch"


class Trace:
    """The source under one setting: goes through its instances in order, then marks what can be seen."""

    def __init__(self, run: Run, flags: frozenset[FlagKey]) -> None:
        self.run, self.flags = run, flags
        self.ran = sum(1 << at for at, key in enumerate(run.keys) if run.runs(key, flags))
        self.last: dict[Cell, int] = {}
        self.writers: dict[Cell, list[int]] = defaultdict(list)
        self.reads: list[list[tuple[Cell, int, bool]]] = [[] for _ in run.keys]
        self.data: list[set[int]] = [set() for _ in run.keys]
        self.conditions: list[set[int]] = [set() for _ in run.keys]
        self.after = [0] * len(run.keys)
        self.entries: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        self.polled: list[tuple[int, int]] = []
        self.buffers: dict[int, int] = {}
        self.readers: dict[int, list[int]] = defaultdict(list)
        self.frees: dict[int, int] = {}
        self.queues = {name: Queue(paired) for name, paired in _queues(run, self.ran)}
        for at, key in enumerate(run.keys):
            self._visit(at, key)
        self.ends = [(cell, self.last[cell]) for cell in sorted(self.last, key=repr) if self._is_seen(cell)]
        self.live = 0
        self.visible: set[str] = set()
        self._mark([writer for _, writer in self.ends])
        self._mark(push for queue in self.queues.values() for push in queue.left())
        self._mark(self.frees)
        self.carried = list(self._carried())
        self._mark(maker for _, maker in self.carried)

    def _visit(self, at: int, key: Key) -> None:
        place = self.run.source.sheet.places[key[0]]
        ran = self.ran >> at & 1
        for name in flags_of(place.op.when):
            maker = self.run.maker(key, name, self.flags)
            if maker is not None:
                self.conditions[at].add(self.run.index[maker])
        if not ran:
            return
        holds = not place.kind.polls or (place.op.results[-1].name, *key) in self.flags
        for use in place.op.args if holds else ():
            maker = self.run.maker(key, use.name, self.flags, use.step, use.micro)
            if maker is None:
                continue
            self.data[at].add(self.run.index[maker])
            if place.kind.polls:
                self.polled.append((self.run.index[maker], at))
            self._read(self.run.index[maker], at, frees=place.kind.frees)
        if any(given.base in _IN_BUFFERS for given in place.kind.results):
            self.buffers.setdefault(at, at)
        self._touch(at, key)

    def _read(self, maker: int, at: int, *, frees: bool) -> None:
        """Notes who reads which buffer: what is made from a micro-batch lies where that does."""
        root = self.buffers.get(maker)
        if root is None:
            return
        if frees:
            self.frees[at] = root
        else:
            self.readers[root].append(at)
            self.buffers.setdefault(at, root)

    def _touch(self, at: int, key: Key) -> None:
        read: dict[Cell, bool] = {}
        written: dict[Cell, None] = {}
        for touch in self.run.source.touches.by_op[key[0]]:
            name, kind = touch.resource.name, touch.resource.kind
            if name in self.queues:
                self._queue(self.queues[name], at, touch)
                continue
            named = named_cell(touch, key)
            if kind is ResourceKind.CELL and named[1] is not None:
                self.entries[name][named[1]].append(at)
            for cell in self.run.universe.cells(named):
                if touch.reads or kind is ResourceKind.CHANNEL:
                    read[cell] = read.get(cell, False) or touch.awaits
                if touch.writes:
                    written[cell] = None
        for cell, awaits in read.items():
            writer = self.last.get(cell, START)
            self.reads[at].append((cell, writer, awaits))
            if writer != START:
                self.data[at].add(writer)
        for cell in written:
            self.last[cell] = at
            self.writers[cell].append(at)

    def _queue(self, queue: Queue, at: int, touch: Touch) -> None:
        """Pushes are in order, pops are in order, each pop follows what it takes; a look is between all else."""
        self.after[at] |= sum(1 << other for other in queue.barriers)
        queue.seen.append((at, tuple(queue.looks)))
        if touch.exact and touch.writes:
            same = queue.pops if touch.reads else queue.pushes
            self.after[at] |= sum(1 << other for other in same[-1:])
            self.data[at] |= set(queue.barriers)
            if touch.reads:
                taken = queue.pushes[len(queue.pops) :][:1] if queue.paired else queue.pushes
                queue.taken[at] = len(queue.pushes)
                self.after[at] |= sum(1 << push for push in taken)
                self.data[at] |= set(taken)
            same.append(at)
            return
        self.data[at] |= {*queue.pushes, *queue.barriers}
        queue.looked.append((at, queue.pushes[-1:] + queue.pops[-1:]))
        if touch.writes:
            self.after[at] |= sum(1 << other for other in queue.pushes[-1:] + queue.pops[-1:])
            queue.barriers.append(at)
        else:
            queue.looks.append(at)

    def _carried(self) -> Iterator[tuple[str, int]]:
        """Who makes the values that a later step would read."""
        last = ("", len(self.run.counts) - 1, ())
        for place in self.run.source.sheet.places.values():
            for use in place.op.args:
                if use.step < 0 and last[1] >= 0:
                    maker = self.run.maker(last, use.name, self.flags, use.step + 1)
                    if maker is not None:
                        yield use.name, self.run.index[maker]

    def _is_seen(self, cell: Cell) -> bool:
        """Whether what stands in a cell at the end could be read later."""
        touches = self.run.source.touches
        kind = touches.resources[cell[0]].kind
        if kind is ResourceKind.CHANNEL:
            return True
        steps = len(self.run.counts)
        return any(
            kind is not ResourceKind.CELL or index is None or cell[1] is None or cell[1] >= steps + index.step
            for index in touches.read(cell[0])
        )

    def _mark(self, roots: Iterable[int]) -> None:
        """Marks instances and all that they read from as live."""
        pending = [at for at in roots if at >= 0]
        while pending:
            at = pending.pop()
            if not self.live >> at & 1:
                self.live |= 1 << at
                pending += self.data[at]
                pending += self.conditions[at]

    def spread(self, ops: set[str]) -> None:
        """Marks the conditions of instances that did not run, of ops that can be seen when they do."""
        self.visible = set(ops)
        for at, key in enumerate(self.run.keys):
            if not self.ran >> at & 1 and key[0] in ops:
                self._mark(self.conditions[at])

    def facts(self) -> Facts:
        """What every equal order must keep, once all that can be seen is marked."""
        run = self.run
        after = list(self.after)
        reads: list[LiveRead] = []
        for at, key in enumerate(run.keys):
            if self.live >> at & 1:
                reads += [
                    LiveRead(at, cell, w, self._done(at, cell) if wait else 0) for cell, w, wait in self.reads[at]
                ]
                after[at] |= sum(1 << maker for maker in self.data[at] | self.conditions[at])
                after[at] |= self._existing(at)
            elif not self.ran >> at & 1 and key[0] in self.visible:
                after[at] |= sum(1 << maker for maker in self.conditions[at])
        for at, root in self.frees.items():
            readers = sum(1 << reader for reader in self.readers[root])
            after[at] |= readers | 1 << root
            reads.append(LiveRead(at, (_BUFFER, run.keys[root][1], root), START, self.run.slow & readers))
        reads += [LiveRead(END, cell, writer, 0) for cell, writer in self.ends]
        for queue in self.queues.values():
            queue.constrain(after, self.live)
        self._queue_capacities(after)
        return Facts(
            self.flags,
            self.ran,
            self.live,
            tuple(mask & ~(1 << at) for at, mask in enumerate(after)),
            tuple(reads),
            {cell: tuple(writers) for cell, writers in self.writers.items()},
            tuple(self.polled),
            tuple(self._lifetimes()),
            frozenset(self.visible),
            {name: (queue.paired, dict(queue.taken)) for name, queue in self.queues.items()},
            tuple(self.carried),
        )

    def _done(self, at: int, cell: Cell) -> int:
        """The instances whose work is to be finished: all that wrote the cell before, and return early."""
        return self.run.slow & sum(1 << writer for writer in self.writers.get(cell, ()) if writer < at)

    def _existing(self, at: int) -> int:
        """Who must have found out that the step exists before a live instance runs."""
        return sum(1 << finder for finder in self.run.finders(at) if self.ran >> finder & 1)

    def _lifetimes(self) -> Iterator[tuple[int, tuple[Lifetime, ...]]]:
        """The entries of each resource with a capacity; of a pool those of all parts, in the order of the source."""
        for name in self.entries:
            capacity = self.run.source.touches.resources[name].capacity
            if capacity:
                yield capacity, tuple(self._lives(name))
        for pool in self.run.source.program.resources:
            lives = [life for name in parts_of_pool(pool, self.entries) for life in self._lives(name)]
            if lives:
                yield pool.capacity, tuple(sorted(lives))

    def _lives(self, name: str) -> Iterator[Lifetime]:
        steps = self.entries[name]
        for step in sorted(steps):
            writers = self.writers.get((name, step, None), [])
            first = next((at for at in steps[step] if at in writers), None)
            if first is not None:
                yield Lifetime(first, sum(1 << at for at in dict.fromkeys(steps[step])))

    def _queue_capacities(self, after: list[int]) -> None:
        for name, queue in self.queues.items():
            capacity = self.run.source.touches.resources[name].capacity
            if capacity and queue.paired:
                for pop, push in zip(queue.pops, queue.pushes[capacity:], strict=False):
                    after[push] |= 1 << pop


class Queue:
    """What happens to a queue in the source.

    Where pushes and pops pair up, the i-th pop takes the i-th push. Where they do not, as when a stream takes a few
    groups at a time of what one op put there, a pop takes some of all that was put there before it; it would wait for
    what is not there, so what is put there later does not matter to it.

    Attributes:
      paired: whether the i-th pop takes the i-th push.
      pushes: the instances that only write it, in order.
      pops: those that read and write it.
      barriers: those that write all of what it is a part of.
      looks: those that only read it.
      looked: what was the last push and pop before a look or a barrier.
      seen: for each instance the looks before it.
      taken: for each pop how many pushes were before it.
    """

    def __init__(self, paired: bool) -> None:
        self.paired = paired
        self.pushes: list[int] = []
        self.pops: list[int] = []
        self.barriers: list[int] = []
        self.looks: list[int] = []
        self.looked: list[tuple[int, list[int]]] = []
        self.seen: list[tuple[int, tuple[int, ...]]] = []
        self.taken: dict[int, int] = {}

    def left(self) -> list[int]:
        """The instances whose entries a later step could take, and those that may have changed these."""
        return [*(self.pushes[len(self.pops) :] if self.paired else self.pushes), *self.barriers]

    def constrain(self, after: list[int], live: int) -> None:
        """Orders live looks between what they saw and what came later."""
        for look, before in self.looked:
            if live >> look & 1:
                after[look] |= sum(1 << at for at in before)
        for at, looks in self.seen:
            after[at] |= sum(1 << look for look in looks if live >> look & 1)


def _queues(run: Run, ran: int) -> Iterator[tuple[str, bool]]:
    """The fifos of a run, each with whether its pushes and pops pair up: no pop finds it empty."""
    for name, resource in run.source.touches.resources.items():
        if resource.kind is not ResourceKind.FIFO:
            continue
        length, paired = 0, True
        for at in bits(ran):
            for touch in run.source.touches.by_op[run.keys[at][0]]:
                if touch.resource.name == name and touch.writes and touch.exact:
                    length += -1 if touch.reads else 1
                    paired = paired and length >= 0
        yield name, paired
