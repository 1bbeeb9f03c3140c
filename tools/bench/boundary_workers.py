"""The parts of the boundary benchmark in processes of their own: the device has one core, all else the other."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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

    def begin_shipped(self, *, reads_flag: bool) -> None:
        """Begin a run."""
        self.begin(Payloads(0), reads_flag=reads_flag)

    def _ship(self, micro_batch: MicroBatch) -> tuple[MicroBatch, Any]:
        """Send the payload to the device."""
        import jax

        data = jax.device_put(micro_batch.arrays["payload"])
        return micro_batch.with_array("payload", data), data


class ShippingPart(RemotePart):
    """The trainer in its worker, as the driver sees it; it adds the payload to what it sends.

    Args:
      part: the part, without payloads.
    """

    def __init__(self, part: RemotePart) -> None:
        super().__init__(line_of(part))
        self._payloads = Payloads(0)

    def begin(self, payloads: Payloads, *, reads_flag: bool) -> None:
        """Begin a run."""
        self._payloads = payloads
        self.begin_shipped(reads_flag=reads_flag)

    def fwd_bwd(self, micro_batch: MicroBatch, **how: bool) -> Any:
        """As the trainer's, with the payload."""
        called = time.perf_counter()
        return self.__getattr__("fwd_bwd")(self._with_payload(micro_batch), called=called, **how)

    def stage_fwd_bwd(self, micro_batch: MicroBatch) -> Any:
        """As the trainer's, with the payload."""
        return self.__getattr__("stage_fwd_bwd")(self._with_payload(micro_batch))

    def finish(self) -> Watched:
        """End a run; gives what was seen in it."""
        seen: Watched = self.__getattr__("finish")()
        return seen

    def _with_payload(self, micro_batch: MicroBatch) -> MicroBatch:
        return micro_batch.with_array("payload", self._payloads.made.pop((micro_batch.step, micro_batch.index)))
