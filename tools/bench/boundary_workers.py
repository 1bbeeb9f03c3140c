"""The parts of the boundary benchmark in processes of their own: the device has one core, all else the other."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from steptrace.lang.records import MicroBatch
from steptrace.run.remote.hosting import hosted
from steptrace.run.remote.part import RemotePart, line_of
from steptrace.workers import remote

from .boundary_parts import FlatReference, HashRollout, Workload, watched_trainer
from .watched import Payloads, Watched, WatchedTrainer


@contextmanager
def parts(work: Workload) -> Iterator[dict[str, Any]]:
    """Trainer, rollout and reference, each in a worker, for several runs."""
    made = {
        "trainer": remote(make_trainer, work, _device_core()),
        "rollout": remote(yielding, HashRollout),
        "reference": remote(yielding, FlatReference),
    }
    with hosted(made) as there:
        yield {**there, "trainer": ShippingPart(there["trainer"])}


def _device_core() -> int | None:
    """The core that this process leaves to the device; None where it leaves none."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    left = set(range(os.cpu_count() or 1)) - os.sched_getaffinity(0)
    return max(left, default=None)


def yielding(make: Callable[[], Any]) -> Any:
    """A part, in its worker, that has a machine of its own outside of the benchmark: here it yields to the driver."""
    if hasattr(os, "nice"):
        os.nice(10)
    return make()


def make_trainer(work: Workload, core: int | None) -> WatchedTrainer:
    """The trainer, in its worker. The threads of its device get a core of their own, if there is one."""
    import jax

    if core is not None:
        host = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {core})
        (jax.numpy.zeros(8) + 1).block_until_ready()
        os.sched_setaffinity(0, host)
    return watched_trainer(ShippedTrainer, work)


class ShippedTrainer(WatchedTrainer):
    """A watched trainer whose payloads come with the micro-batches."""

    def begin_shipped(self, *, reads_flag: bool, profile: bool) -> None:
        """Begin a run."""
        self.begin(Payloads(0), reads_flag=reads_flag, profile=profile)

    def _ship(self, micro_batch: MicroBatch) -> tuple[MicroBatch, Any]:
        """Send the payload to the device."""
        import jax

        data = jax.device_put(micro_batch.arrays["payload"])
        return micro_batch.with_array("payload", data), data


@dataclass(frozen=True, slots=True)
class Called:
    """A call of the trainer as its driver saw it.

    Attributes:
      verb: what was called.
      step, index: of the micro-batch; -1 for a call without one.
      begin, end: when it was made and when it returned, in seconds.
    """

    verb: str
    step: int
    index: int
    begin: float
    end: float


class ShippingPart(RemotePart):
    """The trainer in its worker, as the driver sees it; it adds the payload to what it sends, and notes its calls.

    Args:
      part: the part, without payloads.

    Attributes:
      calls: what was called in this run.
      sample: the micro-batch that was sent last, without its payload.
    """

    def __init__(self, part: RemotePart) -> None:
        super().__init__(line_of(part))
        self._payloads = Payloads(0)
        self.calls: list[Called] = []
        self.sample: MicroBatch | None = None

    def begin(self, payloads: Payloads, *, reads_flag: bool, profile: bool = False) -> None:
        """Begin a run."""
        self._payloads, self.calls = payloads, []
        self.begin_shipped(reads_flag=reads_flag, profile=profile)

    def fwd_bwd(self, micro_batch: MicroBatch, **how: bool) -> Any:
        """As the trainer's, with the payload."""
        self.sample = micro_batch
        how["called"] = time.perf_counter()  # type: ignore[assignment]
        return self._noted("fwd_bwd", micro_batch.step, micro_batch.index, self._with_payload(micro_batch), **how)

    def stage_fwd_bwd(self, micro_batch: MicroBatch) -> Any:
        """As the trainer's, with the payload."""
        return self._noted("stage_fwd_bwd", micro_batch.step, micro_batch.index, self._with_payload(micro_batch))

    def fwd_bwd_staged(self, request: Any, **how: bool) -> Any:
        """As the trainer's."""
        return self._noted("fwd_bwd_staged", -1, 0, request, **how)

    def get_metrics(self) -> Any:
        """As the trainer's."""
        return self._noted("get_metrics", -1, -1)

    def apply_deferred_update(self) -> Any:
        """As the trainer's."""
        return self._noted("apply_deferred_update", -1, -1)

    def finish(self) -> Watched:
        """End a run; gives what was seen in it."""
        seen: Watched = self.__getattr__("finish")()
        return seen

    def _noted(self, verb: str, step: int, index: int, *args: Any, **how: Any) -> Any:
        begin = time.perf_counter()
        try:
            return self.__getattr__(verb)(*args, **how)
        finally:
            self.calls.append(Called(verb, step, index, begin, time.perf_counter()))

    def _with_payload(self, micro_batch: MicroBatch) -> MicroBatch:
        return micro_batch.with_array("payload", self._payloads.made.pop((micro_batch.step, micro_batch.index)))
