"""What a compiled program does: the collectives it executes and their bytes, its matmuls, its buffers.

Programs are made by a compiler that is free to merge, split and move collectives, so what was written is no proof of
what runs. Here the compiled text is counted: loops by their trip counts, of what they call too. A loop whose trip count
cannot be read is never taken for one turn: what is in it is listed, and left out of the sums, which are lower bounds
then and say so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from steptrace_kernels.hlo_count import Collective, Table, Tally, walk
from steptrace_kernels.hlo_text import Shape, parse

KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")
"""Kinds of collectives, as HLO names them."""


@dataclass(frozen=True)
class HloReport:
    """Figures of one execution on one device.

    Attributes:
      collectives: those that are executed, in the order of the text.
      matmul_flops: of all dots and convolutions, a multiplication and an addition each counting 1.
      buffers: arrays that are made, each shape once, the largest first; what is fused away is none.
      unknown_loops: loops whose trip count the program does not tell.
      opaque_calls: targets of calls out of the program, in which matmuls would not be seen.
      temp_bytes: what the program allocates beside arguments and results; None for a report of a text.
      devices: for how many devices it is compiled.
    """

    collectives: tuple[Collective, ...]
    matmul_flops: float
    buffers: tuple[Shape, ...]
    unknown_loops: tuple[str, ...]
    opaque_calls: tuple[str, ...]
    temp_bytes: int | None
    devices: int

    @property
    def exact(self) -> bool:
        """False where sums are lower bounds, since some loop's trip count is not known."""
        return not self.unknown_loops

    @property
    def bytes(self) -> float:
        """Bytes that a device sends, by all collectives."""
        return self.bytes_of()

    @property
    def largest(self) -> Shape:
        """The largest array that is made."""
        return self.buffers[0]

    def count(self, kind: str | None = None, *, table: bool | None = None) -> int:
        """How many collectives are executed: of one kind, or of the table or not, if that is said."""
        return sum(one.times for one in self._chosen(kind, table) if one.times is not None)

    def bytes_of(self, kind: str | None = None, *, table: bool | None = None) -> float:
        """Bytes that a device sends by them."""
        return sum(one.bytes * one.times for one in self._chosen(kind, table) if one.times is not None)

    def covered(self, *, table: bool | None = None) -> float:
        """The share of their bytes that is under way while matmuls are computed, by the program's schedule."""
        chosen = [one for one in self._chosen(None, table) if one.times is not None]
        whole = sum(one.bytes * one.times for one in chosen)
        return sum(one.bytes * one.times for one in chosen if one.meanwhile) / whole if whole else 0.0

    def _chosen(self, kind: str | None, table: bool | None) -> list[Collective]:
        if kind is not None and kind not in KINDS:
            raise ValueError(f"{kind!r} is no kind of collective: {', '.join(KINDS)}")
        return [one for one in self.collectives if kind in (None, one.kind) and table in (None, one.table)]

    def __str__(self) -> str:
        least = "" if self.exact else "at least "
        lines = [f"{self.devices} devices; each sends {least}{self.bytes / 1e6:,.3f} MB"]
        for kind in KINDS:
            for table in (True, False):
                count, size = self.count(kind, table=table), self.bytes_of(kind, table=table)
                if count:
                    lines.append(f"  {count:>6} {kind}{' of the table' if table else ''}: {size / 1e6:,.3f} MB")
        lines.append(f"matmuls: {least}{self.matmul_flops / 1e9:,.4f} GFLOP")
        lines.append(f"largest buffer: {self.largest}, {self.largest.bytes / 2**20:,.2f} MiB")
        if self.temp_bytes is not None:
            lines.append(f"temporary memory: {self.temp_bytes / 2**20:,.2f} MiB")
        if self.unknown_loops:
            unknown = [f"{one.kind} {one.name}" for one in self.collectives if one.times is None]
            lines.append(f"trip count not known, and not counted: {', '.join(self.unknown_loops)}")
            lines.append(f"  in them: {', '.join(unknown) or 'no collectives'}")
        if self.opaque_calls:
            lines.append(f"calls that are not looked into: {', '.join(self.opaque_calls)}")
        return "\n".join(lines)


def hlo_report(compiled: Any, *, table: tuple[int, int] | None = None, unknown_trips: int | None = None) -> HloReport:
    """Count what ``compiled`` executes.

    Bytes are those that one device sends, by the ring of ``g`` devices that a collective is over: of an all-gather
    ``out * (g - 1) / g``, of a reduce-scatter and an all-to-all ``in * (g - 1) / g``, of an all-reduce, which is both,
    twice that, of a collective-permute ``in``. Of the branches of a conditional, the one that sends most is counted.

    Args:
      compiled: what ``jax.jit(f).lower(...).compile()`` gives, or the text of it (``compiled.as_text()``).
      table: entries and features of a vocabulary table; collectives are marked as the table's by their sizes. The sizes
        must be such that a shard's tells it apart: with a prime factor that is neither 2 nor a mesh axis's, in either
        of the two, and in no size of other arrays.
      unknown_trips: what to count a loop for whose trip count is not told; it is listed all the same.

    Raises:
      ValueError: ``compiled`` is no compiled program; or nothing tells such a table from other arrays.
    """
    text = compiled if isinstance(compiled, str) else compiled.as_text()
    module = parse(text)
    tally = Tally(Table(*table, devices=module.devices) if table else None, unknown_trips)
    walk(module, module.entry, 1, tally)
    memory = None if isinstance(compiled, str) else compiled.memory_analysis()
    shapes = sorted(set(tally.buffers), key=lambda shape: (-shape.bytes, str(shape)))
    return HloReport(
        tuple(_merged(tally.collectives)),
        tally.flops,
        tuple(shapes),
        tuple(dict.fromkeys(tally.unknown_loops)),
        tuple(sorted(set(tally.opaque))),
        None if memory is None else int(memory.temp_size_in_bytes),
        module.devices,
    )


def _merged(collectives: list[Collective]) -> list[Collective]:
    """One entry for each instruction, although computations may be called from several places."""
    found: dict[Collective, int] = {}
    for one in collectives:
        times = math.nan if one.times is None else one.times
        key = replace(one, times=None)
        found[key] = found.get(key, 0) + times
    return [replace(one, times=None if times != times else int(times)) for one, times in found.items()]
