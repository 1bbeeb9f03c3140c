"""The facts about a run of the source that every equal order must keep."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from steptrace.testing.touches import Cell

FlagKey: TypeAlias = tuple[str, str, int, tuple[int, ...]]
"""A flag of a run: name of the value, op that makes it, step, counters; a capability has "" for the op."""

START, END = -1, -2
"""Stand for what wrote a cell before the run, and for what reads it after."""


class LiveRead(NamedTuple):
    """A read that matters.

    Attributes:
      reader: number of the instance, or ``END``.
      cell: what it reads.
      writer: number of the instance that wrote it in the source, or ``START``.
      done: mask of the instances whose work must be finished by then.
    """

    reader: int
    cell: Cell
    writer: int
    done: int


class Lifetime(NamedTuple):
    """One entry of a resource with a capacity: the instance that first writes it, and mask of all that touch it."""

    first: int
    uses: int


@dataclass(frozen=True)
class Facts:
    """The source under one setting of the flags.

    Attributes:
      flags: the flags that are true.
      ran: mask of the instances whose condition is true.
      live: mask of those whose work can be seen.
      after: for each instance, mask of those that must be issued before it in any equal order.
      reads: the reads that matter.
      writers: for each cell the instances that write it, in order.
      polled: pairs (maker, poll) of a polling op whose flag is true: its operand was there.
      lifetimes: for each resource with a capacity: the capacity, and its entries in order.
      visible: ids of the ops that can be seen, under this or another setting.
      queues: the queues: whether the i-th pop takes the i-th push, and for each pop how many pushes were before it.
      carried: the values that a later step would read, each with the instance that makes it.
      orders: for each instance, mask of those that come before it in an order that is surely equal.
    """

    flags: frozenset[FlagKey]
    ran: int
    live: int
    after: tuple[int, ...]
    reads: tuple[LiveRead, ...]
    writers: Mapping[Cell, tuple[int, ...]]
    polled: tuple[tuple[int, int], ...]
    lifetimes: tuple[tuple[int, tuple[Lifetime, ...]], ...]
    visible: frozenset[str]
    queues: Mapping[str, tuple[bool, Mapping[int, int]]]
    carried: tuple[tuple[str, int], ...]

    @cached_property
    def orders(self) -> tuple[int, ...]:
        """See the class. The order of all conflicts that touch a live read."""
        found = list(self.after)
        for cell in {read.cell for read in self.reads}:
            for one, other in pairwise(self.writers.get(cell, ())):
                found[other] |= 1 << one
        for reader, cell, writer, _ in self.reads:
            if reader == END:
                continue
            if writer != START:
                found[reader] |= 1 << writer
            later = next((other for other in self.writers.get(cell, ()) if other >= reader), reader)
            if later != reader:
                found[later] |= 1 << reader
        for capacity, entries in self.lifetimes:
            for at, entry in enumerate(entries[1:], 1):
                found[entry.first] |= 1 << entries[at - 1].first
                if at >= capacity:
                    found[entry.first] |= entries[at - capacity].uses & ~(1 << entry.first)
        return tuple(found)

    @cached_property
    def done(self) -> dict[int, int]:
        """For each instance, mask of those whose work must be finished by then."""
        found: dict[int, int] = defaultdict(int)
        for read in self.reads:
            if read.done:
                found[read.reader] |= read.done
        return dict(found)


def bits(mask: int) -> Iterator[int]:
    """The positions of the ones in a mask, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
