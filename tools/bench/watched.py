"""What the device of a real trainer does, and when: a thread waits for each result in its order."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from steptrace.lang.records import MicroBatch
from steptrace.run.trainer import JaxTrainer
from steptrace.simulate import TRAINER, Span, idle_between

from .profiled import Interval, Profiled


@dataclass(frozen=True, slots=True)
class Seen:
    """Work of the device as it was seen.

    Attributes:
      kind: ``fwd_bwd`` or ``update``.
      step: its step.
      index: the micro-batch, -1 for an update.
      called: when the call that sent it was made, in seconds; its data is on the way from there on.
      sent: when its dispatch began.
      dispatched: when the device had it in its queue.
      returned: when the call that dispatched it returned; one that bounds what is in flight waits in between.
      arrived: when its data was on the device.
      start, end: when the device worked on it.
    """

    kind: str
    step: int
    index: int
    called: float
    sent: float
    dispatched: float
    returned: float
    arrived: float
    start: float
    end: float


class Watcher:
    """A thread that waits for results in the order in which their work was sent, and notes the times.

    A span begins when the work was dispatched, its data was there and what came before it was done, whichever came
    last.
    """

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self._sent: queue.SimpleQueue[tuple[Any, ...] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._watch, name="steptrace-watcher", daemon=True)
        self._thread.start()

    def sent(
        self, kind: str, step: int, index: int, called: float, sent: float, dispatched: float, data: Any, result: Any
    ) -> None:
        """Note that work was sent whose result is ``result``, on ``data``; None for data that were there."""
        self._sent.put((kind, step, index, called, sent, dispatched, time.perf_counter(), data, result))

    def close(self) -> list[Seen]:
        """Wait for all that was sent; gives what was seen."""
        self._sent.put(None)
        self._thread.join()
        return self.seen

    def _watch(self) -> None:
        before = 0.0
        while (item := self._sent.get()) is not None:
            kind, step, index, called, sent, dispatched, returned, data, result = item
            arrived = sent
            with suppress(RuntimeError):  # an array that was given away is there, or there would be nothing to give
                if data is not None:
                    data.block_until_ready()
                    arrived = time.perf_counter()
                result.block_until_ready()
            end = time.perf_counter()
            start = min(max(dispatched, before, arrived), end)
            self.seen.append(Seen(kind, step, index, called, sent, dispatched, returned, arrived, start, end))
            before = end


@dataclass
class Payloads:
    """What is shipped with each micro-batch beside its own arrays: made once, shipped once.

    Attributes:
      megabytes: of each.
      made: those that are not shipped yet, by step and micro-batch.
    """

    megabytes: float
    made: dict[tuple[int, int], Any] = field(default_factory=dict)

    def make(self, step: int, index: int) -> None:
        """Make the payload of a micro-batch: its own memory, at an address that JAX copies from and never aliases."""
        import numpy as np

        size = max(16, int(self.megabytes * 1e6 / 4))
        memory = np.empty(size + 1, np.float32)
        payload = memory[int(memory.ctypes.data % 64 == 0) :][:size]
        payload.fill(step + index / 1024)
        self.made[step, index] = payload


@dataclass(frozen=True, slots=True)
class Watched:
    """What was seen in a run.

    Attributes:
      seen: what the device did.
      fetches: seconds of each ``get_metrics`` from the moment at which the update had landed.
      stages: how many micro-batches were staged.
      busy: when the device worked, as `jax.profiler` saw it; None of a run without it.
    """

    seen: list[Seen]
    fetches: list[float]
    stages: int
    busy: list[Interval] | None = None


class WatchedTrainer(JaxTrainer):
    """The trainer of this package, which ships a payload with each micro-batch and tells a watcher what it sends.

    Attributes:
      payloads: what is shipped.
      watcher: who is told; a new one for each run.
      reads_flag: whether the update reads, on the host, a flag of the step's last micro-batch before it is dispatched.
      fetches, stages: as in `Watched`.
    """

    payloads: Payloads
    watcher: Watcher
    reads_flag: bool
    fetches: list[float]
    stages: int

    def begin(self, payloads: Payloads, *, reads_flag: bool, profile: bool = False) -> None:
        """Begin a run; with ``profile``, `jax.profiler` looks too."""
        if hasattr(self, "watcher"):
            self.watcher.close()
        self.payloads, self.reads_flag = payloads, reads_flag
        self._profiled = Profiled() if profile else None
        self.watcher, self.fetches, self.stages = Watcher(), [], 0
        self._shipped: dict[int, tuple[MicroBatch, Any]] = {}

    def finish(self) -> Watched:
        """End a run; gives what was seen in it."""
        seen = self.watcher.close()
        return Watched(seen, self.fetches, self.stages, None if self._profiled is None else self._profiled.busy())

    def fwd_bwd(self, micro_batch: MicroBatch, *, called: float | None = None, **how: bool) -> dict[str, Any] | None:
        """As the trainer's, with the payload shipped first; ``called`` is when its driver began."""
        called = time.perf_counter() if called is None else called
        shipped, data = self._ship(micro_batch)
        call = super().fwd_bwd
        return self._watched(called, shipped, data, lambda: call(shipped, **how))

    def stage_fwd_bwd(self, micro_batch: MicroBatch) -> Any:
        """As the trainer's, with the payload shipped first."""
        shipped, data = self._ship(micro_batch)
        staged = super().stage_fwd_bwd(shipped)
        self._shipped[staged.request] = shipped, data
        self.stages += 1
        return staged

    def fwd_bwd_staged(self, request: Any, **how: bool) -> dict[str, Any] | None:
        """As the trainer's."""
        called = time.perf_counter()
        shipped, data = self._shipped.pop(request.request)
        call = super().fwd_bwd_staged
        return self._watched(called, shipped, data, lambda: call(request, **how))

    def update(self) -> None:
        """As the trainer's, behind the flag if there is one."""
        step = -1 if self._step is None else self._step
        if self.reads_flag and self._waiting:
            self._waiting[-1].block_until_ready()
        sent = time.perf_counter()
        super().update()
        self.watcher.sent("update", step, -1, sent, sent, time.perf_counter(), None, self.last_update_token)

    def get_metrics(self) -> dict[str, float]:
        """As the trainer's; its own part is timed."""
        self.last_update_token.block_until_ready()
        landed = time.perf_counter()
        metrics = super().get_metrics()
        self.fetches.append(time.perf_counter() - landed)
        return metrics

    def _ship(self, micro_batch: MicroBatch) -> tuple[MicroBatch, Any]:
        """Send the payload to the device."""
        import jax

        data = jax.device_put(self.payloads.made.pop((micro_batch.step, micro_batch.index)))
        return micro_batch.with_array("payload", data), data

    def _watched(self, called: float, micro_batch: MicroBatch, data: Any, call: Any) -> dict[str, Any] | None:
        """Make a training call; the watcher is told once it returns, so no arm may send an update with it."""
        if data.is_ready():
            data = None
        sent = time.perf_counter()
        made: dict[str, Any] | None = call()
        step, index, result = micro_batch.step, micro_batch.index, self._waiting[-1]
        self.watcher.sent("fwd_bwd", step, index, called, sent, self._dispatched, data, result)
        return made

    def _add(self, micro_batch: MicroBatch, arrays: dict[str, Any]) -> None:
        """As the trainer's; it has returned once the device has the work, before anything is waited for."""
        super()._add(micro_batch, arrays)
        self._dispatched = time.perf_counter()


def payload_loss(inner: Any) -> Any:
    """The loss, made to depend on the payload without a change to any number."""

    def loss(model: Any, batch: Mapping[str, Any]) -> Any:
        total, count, metrics = inner(model, batch)
        return total + batch["payload"][0] * 0.0, count, metrics

    return loss


def boundary_figures(seen: list[Seen], skip: int) -> dict[str, Any]:
    """Idle times, step times and the busy share, of the steps behind the first ``skip``.

    Returns:
      ``idle_ms`` and ``step_ms``, lists by step; ``busy_s`` and ``whole_s``.
    """
    spans = [Span(TRAINER, s.kind, s.kind, s.step, s.index, s.sent, s.start, s.end) for s in seen]
    trained: dict[int, list[Span]] = {}
    for span in spans:
        if span.kind == "fwd_bwd":
            trained.setdefault(span.step, []).append(span)
    steps = [step for step in sorted(trained) if step >= skip and step + 1 in trained]
    idle = [idle_between(spans, trained[step][-1].end, trained[step + 1][0].start) for step in steps]
    whole = [trained[step + 1][0].start - trained[step][0].start for step in steps]
    begin, end = trained[steps[0]][0].start, trained[steps[-1] + 1][0].start
    return {
        "idle_ms": [1e3 * value for value in idle],
        "step_ms": [1e3 * value for value in whole],
        "busy_s": (end - begin) - idle_between(spans, begin, end),
        "whole_s": end - begin,
    }
