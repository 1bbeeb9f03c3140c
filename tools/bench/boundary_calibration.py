"""What the verbs of the border take on their own, in the trainer's worker: measured outside of any schedule."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING

from .watched import Payloads, Seen

if TYPE_CHECKING:
    from .boundary_parts import Workload
    from .boundary_workers import ShippingPart

ROUNDS, _FIRST = 6, 1_000_000


@dataclass(frozen=True, slots=True)
class Calibration:
    """Medians, in seconds.

    Attributes:
      stage_s: a stage whose data finds the device idle, call and answer.
      staged_issue_s: the staged call, on the lane that makes it.
      staged_way_s: from its return until the device has it in its queue.
      whole_s: from a call with its data until the device has it in its queue, with nothing else on the way.
      wake_s: from the end of a step's last micro-batch until a held update is in the device's queue.
      confirm_s: from the end of a held update until its call has returned.
      set_aside_s: ``start_metrics``.
      fetch_s: ``fetch_metrics`` of an update that has landed.
      copy_s: ``copy_weights`` behind an update that has landed, call and answer.
      dispatch_s: the dispatch of a staged call, in the worker.
    """

    stage_s: float
    staged_issue_s: float
    staged_way_s: float
    whole_s: float
    wake_s: float
    confirm_s: float
    set_aside_s: float
    fetch_s: float
    copy_s: float
    dispatch_s: float


def calibrated(trainer: ShippingPart, work: Workload) -> Calibration:
    """Call each verb of a staged boundary some times, each on an idle device, or behind one micro-batch.

    The trainer has run once, so all is compiled. It is left with other parameters than it had.
    """
    payloads = Payloads(work.megabytes)
    trainer.begin(payloads, reads_flag=False)
    taken = [_round(trainer, payloads, _FIRST + number) for number in range(ROUNDS)]
    seen = {(one.kind, one.step, one.index): one for one in trainer.finish().seen}
    rows = [_row(number, times, seen) for number, times in enumerate(taken)][1:]
    return Calibration(*(median(column) for column in zip(*rows, strict=True)))


def _round(trainer: ShippingPart, payloads: Payloads, step: int) -> dict[str, tuple[float, float]]:
    """When each verb was called and when it returned."""
    assert trainer.sample is not None, "a run came before"
    first, last = (replace(trainer.sample, step=step, index=at, last=at == 1) for at in (0, 1))
    for at in (0, 1):
        payloads.make(step, at)
    times: dict[str, tuple[float, float]] = {}
    trainer.wait_for_device()
    begin = time.perf_counter()
    request = trainer.stage_fwd_bwd(first)
    times["stage"] = begin, time.perf_counter()
    begin = time.perf_counter()
    trainer.fwd_bwd_staged(request)
    times["staged"] = begin, time.perf_counter()
    begin = time.perf_counter()
    trainer.fwd_bwd(last, apply_optimizer=True, defer_update=True)
    times["whole"] = begin, time.perf_counter()
    begin = time.perf_counter()
    trainer.apply_deferred_update()
    times["apply"] = begin, time.perf_counter()
    begin = time.perf_counter()
    aside = trainer.start_metrics()
    times["aside"] = begin, time.perf_counter()
    trainer.wait_for_device()
    begin = time.perf_counter()
    trainer.fetch_metrics(aside)
    times["fetch"] = begin, time.perf_counter()
    begin = time.perf_counter()
    copied = trainer.copy_weights()[0]
    times["copy"] = begin, time.perf_counter()
    copied.fetched()  # no copy is left in the worker
    return times


def _row(
    number: int, times: dict[str, tuple[float, float]], seen: dict[tuple[str, int, int], Seen]
) -> tuple[float, ...]:
    """The figures of a round, in the order of `Calibration`."""
    step = _FIRST + number
    staged, last, update = seen["fwd_bwd", step, 0], seen["fwd_bwd", step, 1], seen["update", step, -1]
    return (
        times["stage"][1] - times["stage"][0],
        times["staged"][1] - times["staged"][0],
        max(0.0, staged.dispatched - times["staged"][1]),
        last.dispatched - times["whole"][0],
        max(0.0, update.dispatched - last.end),
        max(0.0, times["apply"][1] - update.end),
        times["aside"][1] - times["aside"][0],
        times["fetch"][1] - times["fetch"][0],
        times["copy"][1] - times["copy"][0],
        staged.dispatched - staged.sent,
    )
