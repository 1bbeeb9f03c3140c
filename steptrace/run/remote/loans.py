"""Micro-batches that a part's process reads where they lie, until the schedule's `release` gives them back."""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from steptrace.lang.records import MicroBatch
from steptrace.workers import Pending

_LONGEST = 600.0


class Loans:
    """The calls of one part that read micro-batches in place, by micro-batch."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[tuple[int, int], list[Pending]] = defaultdict(list)

    def note(self, args: Iterable[Any], pending: Pending) -> None:
        """A call reads the micro-batches among its arguments in place."""
        with self._lock:
            for micro_batch in micro_batches(args):
                self._open[micro_batch.step, micro_batch.index].append(pending)

    def give_back(self, micro_batch: MicroBatch, wait_s: float | None) -> None:
        """Wait until every call that reads a micro-batch is done, computations on a device too; its buffers are free.

        What such a call has failed with is told by the next call that waits, not here.

        Args:
          micro_batch: the micro-batch, with whatever was added to it.
          wait_s: how long to wait, in seconds; None for very long.

        Raises:
          BufferHeldError: the part keeps the arrays.
          WorkerLostError: its process is gone.
        """
        with self._lock:
            calls = self._open.pop((micro_batch.step, micro_batch.index), [])
        for pending in calls:
            with contextlib.suppress(Exception):
                pending.result(wait_s)
            pending.buffers.release(_LONGEST if wait_s is None else wait_s)

    def drop(self) -> None:
        """Give everything back, whatever has become of the run; waits for nothing."""
        with self._lock:
            calls = [pending for some in self._open.values() for pending in some]
            self._open.clear()
        for pending in calls:
            with contextlib.suppress(Exception):
                pending.buffers.release(wait=False)


def micro_batches(args: Iterable[Any]) -> list[MicroBatch]:
    """The micro-batches among the arguments of a call."""
    return [value for value in args if isinstance(value, MicroBatch)]
