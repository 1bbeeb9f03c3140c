"""A trainer and a reference that read micro-batches where they lie: in a ring of few buffers, which are used again.

What a call of the trainer reads, it reads when it is computed, on a thread of its own: as an accelerator whose arrays
alias the memory that was lent to it.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from lane_parts import HalfReference, StagingTrainer

from steptrace.lang.records import MicroBatch

Key = tuple[int, int]


class Ring:
    """Buffers for micro-batches, each as large as any of them. Taking one when none is free is an error.

    Args:
      size: how many there are.
    """

    def __init__(self, size: int) -> None:
        self._lock = threading.Lock()
        self._buffers = [np.zeros(4096, np.uint8) for _ in range(size)]
        self.free = list(range(size))
        self.used: dict[Key, tuple[int, MicroBatch]] = {}
        self.most = 0
        self.given_back: list[Key] = []

    def lent(self, micro_batch: MicroBatch) -> MicroBatch:
        """The micro-batch with its arrays as views on its buffer; the first to ask for it copies it there."""
        key = (micro_batch.step, micro_batch.index)
        with self._lock:
            if key not in self.used:
                if not self.free:
                    raise AssertionError(f"no buffer is free for micro-batch {key}: {sorted(self.used)} have them")
                number = self.free.pop(0)
                self.used[key] = (number, _views(self._buffers[number], micro_batch))
                self.most = max(self.most, len(self.used))
            mine = self.used[key][1]
        own = {name: array for name, array in micro_batch.arrays.items() if name not in mine.arrays}
        return replace(mine, arrays={**mine.arrays, **own})

    def give_back(self, micro_batch: MicroBatch) -> None:
        """The buffer of a micro-batch may be used for another one."""
        key = (micro_batch.step, micro_batch.index)
        with self._lock:
            number, _ = self.used.pop(key)
            self.free.append(number)
            self.given_back.append(key)


def _views(buffer: np.ndarray, micro_batch: MicroBatch) -> MicroBatch:
    at, views = 0, {}
    for name, array in micro_batch.arrays.items():
        view = buffer[at : at + array.nbytes].view(array.dtype).reshape(array.shape)
        view[...] = array
        views[name], at = view, at + array.nbytes
    return replace(micro_batch, arrays=views)


class LentReference(HalfReference):
    """The reference, which reads in place and is done when it returns."""

    def __init__(self, ring: Ring) -> None:
        self.ring = ring

    def logps(self, micro_batch: MicroBatch) -> np.ndarray:
        return np.array(super().logps(self.ring.lent(micro_batch)))


class LentTrainer(StagingTrainer):
    """The trainer, whose training calls return before they are computed.

    Args:
      ring: where micro-batches lie.
      early: whether a buffer is given back as soon as the calls that read it are made. That is wrong.
      delay: how long a training call takes.
    """

    def __init__(
        self, ring: Ring, *, early: bool = False, delay: Callable[[], None] = lambda: time.sleep(2e-3)
    ) -> None:
        super().__init__()
        self.ring, self.early, self.delay = ring, early, delay
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._reading: dict[Key, int] = defaultdict(int)
        self._done = threading.Condition()
        self._open = 0
        self.failed: list[BaseException] = []
        threading.Thread(target=self._compute, name="lent-trainer", daemon=True).start()

    def info(self) -> dict[str, Any]:
        return {"capabilities": {"stage_before_update": True, "fused_update": False, "lends_buffers": True}}

    def release(self, micro_batch: MicroBatch) -> None:
        """Wait until the calls that read a micro-batch are computed, and give its buffer back."""
        key = (micro_batch.step, micro_batch.index)
        with self._done:
            self._done.wait_for(lambda: self.early or not self._reading[key], timeout=20.0)
        self.ring.give_back(micro_batch)

    def fwd_bwd(self, micro_batch: MicroBatch, **how: bool) -> dict[str, bool] | None:
        self._send(self.ring.lent(micro_batch), how)
        return {"update_deferred": bool(how.get("defer_update"))} if how.get("apply_optimizer") else None

    def stage_fwd_bwd(self, micro_batch: MicroBatch) -> int:
        return super().stage_fwd_bwd(self.ring.lent(micro_batch))

    def fwd_bwd_staged(self, request: int, **how: bool) -> dict[str, bool] | None:
        assert self.staged is not None, "nothing is staged"
        assert self.staged[0] == request, "another request is staged"
        (_, micro_batch), self.staged = self.staged, None
        self.ran_staged += 1
        return self.fwd_bwd(micro_batch, **how)

    def _send(self, micro_batch: MicroBatch, how: dict[str, bool]) -> None:
        key = (micro_batch.step, micro_batch.index)
        with self._done:
            self._reading[key] += 1
            self._open += 1

        def work() -> None:
            self.delay()
            try:
                StagingTrainer.fwd_bwd(self, micro_batch, **how)
            except BaseException as error:
                self.failed.append(error)
            with self._done:
                self._reading[key] -= 1
                self._open -= 1
                self._done.notify_all()

        self._work.put(work)

    def _compute(self) -> None:
        while (work := self._work.get()) is not None:
            work()

    def close(self) -> None:
        """End the thread."""
        self._work.put(None)

    def settle(self) -> None:
        """Wait until all that was sent is computed."""
        with self._done:
            assert self._done.wait_for(lambda: not self._open, timeout=20.0), "the trainer computes for ever"
        assert not self.failed, self.failed

    def wait_for_device(self) -> float:
        self.settle()
        return 0.0

    def update(self) -> None:
        if threading.current_thread().name != "lent-trainer":
            self.settle()
        super().update()

    def apply_deferred_update(self) -> None:
        self.settle()
        super().apply_deferred_update()

    def start_metrics(self) -> float:
        self.settle()
        return super().start_metrics()

    def get_metrics(self) -> dict[str, float]:
        self.settle()
        return super().get_metrics()

    def weights(self) -> tuple[dict[str, np.ndarray], int]:
        self.settle()
        return super().weights()

    def save_checkpoint(self, directory: Path) -> None:
        self.settle()
        super().save_checkpoint(directory)

    def snapshot_checkpoint(self) -> tuple[np.ndarray, int]:
        self.settle()
        return super().snapshot_checkpoint()
