"""Runs of a reference: its instances for given numbers of micro-batches, and the settings of its flags."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from steptrace.ir.predicate import And, Every, Has, Not, Or, Predicate, flags_of
from steptrace.ir.program import Program
from steptrace.testing.dataflow import Trace
from steptrace.testing.facts import FlagKey, bits
from steptrace.testing.touches import Touches, Universe, named_cell, touches_of
from steptrace.testing.unrolled import Key, Sheet, instances, maker_of, sheet_of, truth


@dataclass(frozen=True)
class Source:
    """A reference program whose runs are looked at for many schedules.

    Attributes:
      program: the reference: the source with laws and peeling applied in place, all in source order.
      sheet: made ready to be rolled out.
      touches: the cells that its ops touch.
      distance: the largest number of steps between cells of one resource, or from a value to its use.
      periods: the periods of its conditions ``every n``.
    """

    program: Program
    sheet: Sheet
    touches: Touches
    distance: int
    periods: tuple[int, ...]
    _runs: dict[tuple[tuple[int, ...], int], Run] = field(default_factory=dict, repr=False)

    def run(self, counts: tuple[int, ...], phase: int = 0) -> Run:
        """The run with these numbers of micro-batches, from this step on."""
        found = self._runs.get((counts, phase))
        if found is None:
            found = self._runs[counts, phase] = Run(self, counts, phase)
        return found


def source_of(program: Program) -> Source:
    """Makes a reference ready."""
    sheet, touches = sheet_of(program), touches_of(program)
    indices: dict[str, set[int]] = defaultdict(set)
    for touch in (touch for found in touches.by_op.values() for touch in found):
        if touch.index is not None:
            indices[touch.resource.name].add(touch.index.step)
    uses = [-use.step for place in sheet.places.values() for use in place.op.args]
    distance = max([1, *uses, *(max(steps) - min(steps) for steps in indices.values())])
    periods = sorted({period for place in sheet.places.values() for period in _periods(place.op.when)})
    return Source(program, sheet, touches, distance, tuple(periods))


class Run:
    """One run of a reference, under all settings of its flags that are tried.

    Args:
      source: the reference.
      counts: micro-batches of each step.
      phase: the step of the whole run at which this window begins.

    Attributes:
      keys: its instances in the order of the source.
      index: number of each.
      by_op: the instances of each op, in order.
      last_of: the last instance of each op in each step.
      devices: for each instance where its work is finished, "" when its call waits for it.
      slow: mask of the instances whose call does not wait for their work.
      facts: what it computes, for each setting of the flags.
    """

    def __init__(self, source: Source, counts: tuple[int, ...], phase: int) -> None:
        self.source, self.counts, self.phase = source, counts, phase
        self.keys = list(instances(source.sheet, counts))
        self.index = {key: at for at, key in enumerate(self.keys)}
        self.by_op: dict[str, list[int]] = defaultdict(list)
        self.last_of: dict[tuple[str, int], int] = {}
        for at, (id, step, _) in enumerate(self.keys):
            self.by_op[id].append(at)
            self.last_of[id, step] = at
        self.devices = [source.sheet.places[id].asynchronous for id, _, _ in self.keys]
        self.slow = sum(1 << at for at, device in enumerate(self.devices) if device)
        named = (named_cell(touch, key) for key in self.keys for touch in source.touches.by_op[key[0]])
        self.universe = Universe(named)
        self.finding = [(at, key) for at, key in enumerate(self.keys) if self._finds(key)]
        self._finders: dict[int, tuple[int, ...]] = {}
        settings = tuple(settings_of(self._free_flags()))
        runs = [Trace(self, flags) for flags in settings]
        seen: set[str] = set()
        while True:
            before = len(seen)
            for trace in runs:
                trace.spread(seen)
                seen |= {self.keys[at][0] for at in bits(trace.live)}
            if len(seen) == before:
                break
        self.facts = tuple(trace.facts() for trace in runs)

    @cached_property
    def orders(self) -> tuple[int, ...]:
        """For each instance, those before it in an order that is surely equal under every setting tried."""
        found = [0] * len(self.keys)
        for facts in self.facts:
            for at, mask in enumerate(facts.orders):
                found[at] |= mask
        return tuple(found)

    @cached_property
    def done(self) -> dict[int, int]:
        """For each instance, those whose work must be finished by then, under any setting tried."""
        found: dict[int, int] = defaultdict(int)
        for facts in self.facts:
            for reader, mask in facts.done.items():
                found[reader] |= mask
        return dict(found)

    def flag(self, key: Key, flags: frozenset[FlagKey], name: str) -> bool:
        """Whether a flag is true for an instance."""
        if name.startswith("has("):
            return (name, "", 0, ()) in flags
        maker = self.maker(key, name, flags)
        if maker is None:
            return False
        fixed = self._fixed(maker, name)
        return (name, *maker) in flags if fixed is None else fixed

    def maker(self, key: Key, name: str, flags: frozenset[FlagKey], step: int = 0, micro: int = 0) -> Key | None:
        """The instance that makes a value for another instance."""
        path = key[2]
        if micro and path:
            path = (*path[:-1], path[-1] + micro)
        return maker_of(self.source.sheet, lambda at: self.runs(at, flags), name, key[1] + step, path)

    def runs(self, key: Key, flags: frozenset[FlagKey]) -> bool:
        """Whether an instance is there and its condition is true."""
        if key not in self.index:
            return False
        when = self.source.sheet.places[key[0]].op.when
        return truth(when, key, self.counts, self.phase, lambda name: self.flag(key, flags, name))

    def _finds(self, key: Key) -> bool:
        """Whether an instance tells whether its step exists: of several in a step the first does."""
        kind = self.source.sheet.places[key[0]].kind
        first = not key[2] or key[2][-1] == 0
        return first and not kind.user and any(given.name == "exists" for given in kind.results)

    def finders(self, at: int) -> tuple[int, ...]:
        """The instances that tell whether the step of an instance exists."""
        found = self._finders.get(at)
        if found is None:
            found = self._finders[at] = tuple(_finders(self, at))
        return found

    def _fixed(self, maker: Key, name: str) -> bool | None:
        """The truth of a flag that follows from the counts, None when the run decides."""
        place = self.source.sheet.places[maker[0]]
        at = next(at for at, result in enumerate(place.op.results) if result.name == name)
        given = place.kind.results[at].name
        if place.kind.user or given not in ("last", "exists"):
            return None
        return given == "exists" or maker[2][-1] == self.counts[maker[1]] - 1

    def _free_flags(self) -> list[FlagKey]:
        """The flags that the run decides and that a condition reads."""
        found: dict[FlagKey, None] = {}
        for key in self.keys:
            when = self.source.sheet.places[key[0]].op.when
            for name in flags_of(when):
                for id, _ in self.source.sheet.makers.get(name, ()):
                    for maker in self.keys:
                        if maker[0] == id and self._fixed(maker, name) is None:
                            found[name, *maker] = None
            for capability in _capabilities(when):
                found[f"has({capability})", "", 0, ()] = None
        return list(found)


_MOST_FLAGS = 4
"""Up to so many flags every setting is tried."""


def settings_of(flags: list[FlagKey]) -> Iterator[frozenset[FlagKey]]:
    """The settings of the flags that are tried: all of them, or for many flags a fixed choice.

    The choice: all false, all true, and such that over the steps they alternate, or one in three is true or false; over
    the micro-batches they alternate. So any two neighbouring steps see all settings of a flag of which each has one.
    """
    if len(flags) <= _MOST_FLAGS:
        for number in range(2 ** len(flags)):
            yield frozenset(flag for at, flag in enumerate(flags) if number >> at & 1)
        return
    everything = frozenset(flags)
    chosen = [frozenset[FlagKey](), everything]
    chosen += [frozenset(flag for flag in flags if flag[2] % 2 == odd) for odd in (0, 1)]
    third = frozenset(flag for flag in flags if flag[2] % 3 == 0)
    chosen += [third, everything - third]
    chosen += [frozenset(flag for flag in flags if sum(flag[3]) % 2 == odd) for odd in (0, 1)]
    yield from dict.fromkeys(chosen)


def _finders(run: Run, at: int) -> Iterator[int]:
    """The instances that tell whether the step of an instance exists: of its step if they stand before it in the
    source, else of the step before, unless the instance only feeds the queue whose end is the end of the data."""
    sheet, touches = run.source.sheet, run.source.touches
    id, step, _ = run.keys[at]
    if sheet.places[id].kind.polls:
        return
    for number, key in run.finding:
        place = sheet.places[key[0]]
        if key[1] == step and number < at:
            yield number
        elif key[1] == step - 1 and not any(later == step and n < at for n, later in _same(run, place.op.id)):
            drained = {touch.resource.name for touch in touches.by_op[key[0]] if touch.writes}
            fed = {touch.resource.name for touch in touches.by_op[id] if touch.writes and not touch.reads}
            if not drained & fed:
                yield number


def _same(run: Run, id: str) -> Iterator[tuple[int, int]]:
    """The instances of an op, each with its step."""
    for number, key in enumerate(run.keys):
        if key[0] == id:
            yield number, key[1]


def _periods(predicate: Predicate) -> Iterator[int]:
    match predicate:
        case Every(period):
            yield period
        case Not(term):
            yield from _periods(term)
        case And(terms) | Or(terms):
            for term in terms:
                yield from _periods(term)
        case _:
            return


def _capabilities(predicate: Predicate) -> Iterator[str]:
    match predicate:
        case Has(capability):
            yield capability
        case Not(term):
            yield from _capabilities(term)
        case And(terms) | Or(terms):
            for term in terms:
                yield from _capabilities(term)
        case _:
            return
