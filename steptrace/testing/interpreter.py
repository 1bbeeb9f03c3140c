"""An interpreter of one order of events, on uninterpreted terms: what an instance gives is its name and what it read.

It keeps real queues, channels and cells, and knows nothing of who should read what: it is the ground that the
judge's reasoning is held against, and it replays the order that a verdict names.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from steptrace.ir.predicate import flags_of
from steptrace.ir.resource import ResourceKind
from steptrace.testing.facts import Facts
from steptrace.testing.runs import Run
from steptrace.testing.touches import Cell, Touch, named_cell
from steptrace.testing.unrolled import Key

Term: TypeAlias = int
"""A term, as the number under which it was first built; equal numbers are equal terms."""


class Terms:
    """All terms that were built, each once."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Term] = {}

    def of(self, *parts: object) -> Term:
        """The term with these parts."""
        return self._known.setdefault(parts, len(self._known))


@dataclass(frozen=True, slots=True)
class Seen:
    """What can be seen of a run.

    Attributes:
      skipped: instances that did not run, of ops that could be seen, each with the flags that said so.
      cells: what stands, at the end, in each channel and in each cell that a later step could read.
      queues: for each queue, what is left in it, and who filled and emptied it in which order.
      carried: the values that a later step would read.
      overfull: whether a resource ever held more than its capacity.
    """

    skipped: tuple[Term, ...]
    cells: tuple[tuple[Cell, Term], ...]
    queues: tuple[tuple[str, tuple[Term, ...], tuple[str, ...]], ...]
    carried: tuple[tuple[str, Term], ...]
    overfull: bool


def source_events(run: Run) -> list[int]:
    """The events of the source: one instance after the other, each finished before the next."""
    size = len(run.keys)
    return [event for at in range(size) for event in (at, size + at) if event < size or run.devices[at]]


def interpret(run: Run, facts: Facts, events: Iterable[int], terms: Terms) -> Seen:
    """Runs the events in their order, under one setting of the flags.

    Args:
      run: the run of the source; the instances of the schedule are the same.
      facts: which flags are true, and so which instances run.
      events: all events, numbered as in ``Order``.
      terms: the terms built so far; runs that are to be compared share them.
    """
    machine = _Machine(run, facts, terms)
    for event in events:
        machine.happen(event)
    return machine.seen()


class _Machine:
    """The state of a run."""

    def __init__(self, run: Run, facts: Facts, terms: Terms) -> None:
        self.run, self.facts, self.terms = run, facts, terms
        self.cells: dict[Cell, Term] = {}
        self.pending: dict[Cell, set[int]] = defaultdict(set)
        self.queues: dict[str, list[Term]] = {name: [] for name in facts.queues}
        self.emptied = dict.fromkeys(facts.queues, 0)
        self.history: dict[str, list[str]] = defaultdict(list)
        self.values: dict[tuple[Key, str], Term] = {}
        self.skipped: list[Term] = []
        self.issued = 0
        self.overfull = False

    def happen(self, event: int) -> None:
        size = len(self.run.keys)
        if event >= size:
            for writers in self.pending.values():
                writers.discard(event - size)
            return
        key = self.run.keys[event]
        if self.facts.ran >> event & 1:
            self._run(event, key)
        elif key[0] in self.facts.visible:
            self.skipped.append(self.terms.of(key, *self._flags(key)))
        self.issued |= 1 << event
        self._count(event)

    def _flags(self, key: Key) -> list[object]:
        """The flags that a condition looks at, as they are by then."""
        found: list[object] = []
        for name in flags_of(self.run.source.sheet.places[key[0]].op.when):
            maker = self.run.maker(key, name, self.facts.flags)
            found.append("start" if maker is None else self.values.get((maker, name), "missing"))
        return found

    def _run(self, at: int, key: Key) -> None:
        place = self.run.source.sheet.places[key[0]]
        inputs: list[object] = [key, *self._flags(key)]
        if not place.kind.polls or (place.op.results[-1].name, *key) in self.facts.flags:
            for use in place.op.args:
                maker = self.run.maker(key, use.name, self.facts.flags, use.step, use.micro)
                inputs.append(("start", use.name) if maker is None else self.values.get((maker, use.name), "missing"))
        inputs += [self.issued >> finder & 1 for finder in self.run.finders(at) if self.facts.ran >> finder & 1]
        written: list[Cell] = []
        for touch in sorted(self.run.source.touches.by_op[key[0]], key=lambda touch: touch.resource.name):
            inputs += self._read(key, touch, written)
        for name in self.queues:
            inputs += self._pop(name, at, key)
        term = self.terms.of(*inputs)
        for cell in written:
            self.cells[cell] = self.terms.of(term, cell)
            if self.run.devices[at]:
                self.pending[cell].add(at)
        for name in self.queues:
            self._push(name, key, term)
        for result in place.op.results:
            self.values[key, result.name] = self.terms.of(term, result.name)

    def _read(self, key: Key, touch: Touch, written: list[Cell]) -> list[object]:
        kind = touch.resource.kind
        if touch.resource.name in self.queues:
            return []
        found: list[object] = []
        for cell in sorted(self.run.universe.cells(named_cell(touch, key)), key=repr):
            if touch.reads or kind is ResourceKind.CHANNEL:
                found.append((cell, self.cells.get(cell, -1)))
            if touch.awaits and self.pending[cell]:
                found.append(("unfinished", cell))
            if touch.writes:
                written.append(cell)
        return found

    def _touches(self, name: str, key: Key) -> list[Touch]:
        return [touch for touch in self.run.source.touches.by_op[key[0]] if touch.resource.name == name]

    def _pop(self, name: str, at: int, key: Key) -> list[object]:
        found: list[object] = []
        queue, (paired, taken) = self.queues[name], self.facts.queues[name]
        for touch in self._touches(name, key):
            if touch.reads and touch.writes and touch.exact:
                self.history[f"{name}: emptied"].append(f"{key}")
                first = self.emptied[name] if paired else 0
                last = first + 1 if paired else taken[at]
                found.append(tuple(queue[first:last]) if len(queue) >= last else "empty")
                self.emptied[name] += 1
            elif touch.reads:
                found.append((tuple(queue[self.emptied[name] if paired else 0 :]), self.emptied[name]))
        return found

    def _push(self, name: str, key: Key, term: Term) -> None:
        queue, (paired, _) = self.queues[name], self.facts.queues[name]
        for touch in self._touches(name, key):
            if touch.writes and not touch.exact:
                self.history[f"{name}: changed"].append(f"{key}")
                queue[:] = [self.terms.of(term, entry) for entry in queue]
            elif touch.writes and not touch.reads:
                queue.append(term)
                self.history[f"{name}: filled"].append(f"{key}")
                capacity = touch.resource.capacity if paired else 0
                self.overfull = self.overfull or 0 < capacity < len(queue) - self.emptied[name]

    def _count(self, at: int) -> None:
        """Counts the entries that are in use: begun, and not all that touch them have run."""
        before = self.issued & ~(1 << at)
        for capacity, entries in self.facts.lifetimes:
            live = sum(1 for entry in entries if self.issued >> entry.first & 1 and entry.uses & ~before)
            self.overfull = self.overfull or live > capacity

    def seen(self) -> Seen:
        ends = sorted({read.cell for read in self.facts.reads if read.reader < 0}, key=repr)
        queues = []
        for name, queue in self.queues.items():
            left = queue[self.emptied[name] if self.facts.queues[name][0] else 0 :]
            queues.append((name, tuple(left), ()))
        orders = [(name, (), tuple(order)) for name, order in sorted(self.history.items())]
        carried = []
        for name, maker in self.facts.carried:
            carried.append((name, self.values.get((self.run.keys[maker], name), -1)))
        return Seen(
            tuple(sorted(self.skipped)),
            tuple((cell, self.cells.get(cell, -1)) for cell in ends),
            (*queues, *orders),
            tuple(carried),
            self.overfull,
        )
