"""What a measured base arm and a calibration of the stage's verbs say of the other arms, before these are looked at."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from steptrace.simulate import Cost, Durations, VirtualTrainer, simulate
from steptrace.simulate.trainer import Clock, Verb

from . import virtual_boundary
from .arms import ARMS

if TYPE_CHECKING:
    from .boundary_calibration import Calibration
    from .boundary_run import Arm
    from .boundary_workers import Called

IDLE_MS, IDLE_SHARE, STEP_SHARE = 2.0, 0.05, 0.03
"""How near a prediction is to come: idle time within so much, or that share of the base arm's; step time within this
share."""

AHEAD = 3
"""Training calls that the driver is ahead of the device: two without an answer, and one that is computed."""

_ON_LANES = (
    *("on_step_begin", "dispatch", "take", "reward", "advantages", "pack", "sync_weights", "commit", "log"),
    *("on_step_end", "free"),
)
_IN_ROUNDS = ("next_mb", "ref_logps")


@dataclass(frozen=True, slots=True)
class ColdStart:
    """Work that finds a device cold takes longer: in the base arm, a step's first micro-batch.

    Attributes:
      extra_s: by so much.
      idle_s: behind so much idle time; behind less of it, by as much less.
    """

    extra_s: float = 0.0
    idle_s: float = 1.0

    def behind(self, idle_s: float) -> float:
        """How much longer work takes behind so much idle time, in seconds."""
        return self.extra_s * min(1.0, idle_s / self.idle_s)


class WorkerTrainer(VirtualTrainer):
    """A trainer in its worker, in virtual time: its calls are on their way when they return, its answers take time.

    Args:
      found: what was calibrated.
      cold: what its device loses when it is idle.
    """

    in_flight = AHEAD

    def __init__(self, found: Calibration, cold: ColdStart) -> None:
        super().__init__()
        self._found, self._cold = found, cold
        self._before = self._last = self._worked = self._copied = 0.0

    def train(self, clock: Clock, micro_batch: Any, arrived: float, closes: bool, defer: bool, wait: bool) -> Verb:
        """As the trainer's, on a device that may be cold; a copy of the weights in front of it comes first."""
        arrived = max(arrived, self._copied + self._found.dispatch_s)
        idle = max(0.0, max(clock.now, arrived) - self._worked)
        self._worked = done = clock.send(clock.cost.work_s + self._cold.behind(idle), after=arrived)
        self.attempted(micro_batch, done)
        yield from self.bounded(clock, done)
        return (yield from self.closed(clock, closes, defer, wait))

    def make_update(self, clock: Clock, cost: Cost, what: str = "") -> Verb:
        """As the trainer's; the device is warm behind it, and a copy of the weights does not keep it so."""
        yield from super().make_update(clock, cost, what)
        self._worked = self.idle_at

    def attempted(self, micro_batch: Any, done: float) -> None:
        """As the trainer's; it keeps when the call before is computed."""
        super().attempted(micro_batch, done)
        self._before, self._last = self._last, done

    def closed(self, clock: Clock, closes: bool, defer: bool, wait: bool) -> Verb:
        """As the trainer's; a call that closes the step is answered once the one before it is computed."""
        if closes:
            yield clock.until(self._before)
        return (yield from super().closed(clock, closes, defer, wait))

    def fwd_bwd_staged(self, clock: Clock, request: Any, **how: bool) -> Verb:
        """As the trainer's; the call takes its way."""
        assert self.staged is not None, "what runs staged was staged before"
        number, micro_batch, arrived = self.staged
        there = clock.now + clock.cost.issue_s + self._found.staged_way_s
        self.staged = number, micro_batch, max(arrived, there)
        return (yield from super().fwd_bwd_staged(clock, request, **how))

    def apply_deferred_update(self, clock: Clock) -> Verb:
        """As the trainer's; the worker wakes up behind the device, and so does the driver behind the worker."""
        waited = yield from self.wait_for_device(clock)
        yield self._found.wake_s
        self.held = False
        yield from self.make_update(clock, clock.cost)
        yield clock.until(self.idle_at)
        yield self._found.confirm_s
        return {"device_wait_s": waited, "update_ready": True}

    def weights(self, clock: Clock) -> Verb:
        """As the trainer's; the answer comes once the update has landed, and takes its time from there."""
        yield clock.until(self.idle_at)
        return (yield from super().weights(clock))

    def copy_weights(self, clock: Clock) -> Verb:
        """As the trainer's; the driver goes on, and the worker copies once the update has landed."""
        landed = self.idle_at
        made = yield from super().copy_weights(clock)
        self._copied = max(clock.now, landed) + self._found.copy_s
        return made


def durations(base: Arm, calls: Sequence[Sequence[Called]], found: Calibration, micro_batches: int) -> Durations:
    """The costs of ops: from the base arm, those of the border's verbs from their calibration; from nothing else.

    The way of a step's first call is that of the base arm, where the next one is shipped beside it. Of the call that is
    sent early, behind which the driver only waits, it is the calibration's.
    """
    phase: dict[str, float] = defaultdict(float)
    for kind in {kind for step in base.phases for kind in step}:
        phase[kind] = median(step.get(kind, 0.0) for step in base.phases)
    work, _ = _works(base)
    update = median(one.end - one.start for run in base.seen for one in run if one.kind == "update")
    issue, way = _shipping(base, calls)
    costs = {
        **{kind: Cost(phase[kind]) for kind in _ON_LANES},
        **{kind: Cost(phase[kind] / micro_batches) for kind in _IN_ROUNDS},
        "fwd_bwd": Cost(issue, work, way),
        "fwd_bwd.first.early": Cost(min(issue, found.whole_s), work, max(0.0, found.whole_s - issue)),
        "stage_fwd_bwd": Cost(found.stage_s),
        "fwd_bwd_staged": Cost(found.staged_issue_s, work),
        "update": Cost(found.set_aside_s, update),
        "apply_deferred_update": Cost(0.0, update),
        "get_metrics": Cost(_answered(base, calls)),
        "start_metrics": Cost(found.set_aside_s),
        "fetch_metrics": Cost(found.fetch_s),
        "copy_weights": Cost(found.set_aside_s),
        "transfer_weights": Cost(phase["sync_weights"] / 2),
        "apply_weights": Cost(phase["sync_weights"] / 2),
    }
    return Durations(costs)


def cold_start(base: Arm) -> ColdStart:
    """What the device loses when it is idle, as the base arm has it."""
    work, first = _works(base)
    return ColdStart(max(0.0, first - work), max(1e-9, median(base.idle_ms) / 1e3))


def _works(base: Arm) -> tuple[float, float]:
    """The device's work on a micro-batch behind another one, on average in a step; and on a step's first one."""
    steps = defaultdict[tuple[int, int], list[float]](list)
    firsts = []
    for number, run in enumerate(base.seen):
        for one in run:
            if one.kind == "fwd_bwd" and one.index:
                steps[number, one.step].append(one.end - one.start)
            elif one.kind == "fwd_bwd":
                firsts.append(one.end - one.start)
    first = median(firsts)
    return median(map(fmean, steps.values())) if steps else first, first


def _shipping(base: Arm, calls: Sequence[Sequence[Called]]) -> tuple[float, float]:
    """Of a step's first training call, which finds nothing on the line: the call, and the way to the device's queue."""
    issues, ways = [], []
    for run, seen in zip(calls, base.seen, strict=True):
        there = {one.step: max(one.dispatched, one.arrived) for one in seen if one.kind == "fwd_bwd" and one.index == 0}
        for call in run:
            if call.verb == "fwd_bwd" and call.index == 0 and call.step in there:
                issues.append(call.end - call.begin)
                ways.append(max(0.0, there[call.step] - call.end))
    return median(issues), median(ways)


def _answered(base: Arm, calls: Sequence[Sequence[Called]]) -> float:
    """From the moment at which an update has landed until ``get_metrics`` has returned."""
    taken = []
    for run, seen in zip(calls, base.seen, strict=True):
        ends = [call.end for call in run if call.verb == "get_metrics"]
        for one in seen:
            if one.kind == "update":
                taken.append(min((end - one.end for end in ends if end >= one.end), default=0.0))
    return median(taken)


def predictions(
    costs: Durations, found: Calibration, cold: ColdStart, micro_batches: int
) -> dict[str, dict[str, float]]:
    """Idle time and step time of each arm in virtual time, in milliseconds."""
    return {
        arm: {
            key: value
            for key, value in virtual_boundary.figures(
                simulate(
                    virtual_boundary.plan_of(arm, "process"),
                    costs,
                    micro_batches=micro_batches,
                    steps=virtual_boundary.STEPS,
                    trainer=WorkerTrainer(found, cold),
                )
            ).items()
            if key in ("idle_ms_median", "step_ms_median")
        }
        for arm in ARMS
    }


def with_errors(
    predicted: Mapping[str, Mapping[str, float]], measured: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Predictions beside what was measured: by arm, how far off they are, and whether that is near enough.

    Args:
      predicted, measured: by arm, ``idle_ms_median`` and ``step_ms_median``.
    """
    near = max(IDLE_MS, IDLE_SHARE * float(measured["base"]["idle_ms_median"]))
    found = {}
    for arm, mine in predicted.items():
        idle = mine["idle_ms_median"] - float(measured[arm]["idle_ms_median"])
        step = mine["step_ms_median"] / float(measured[arm]["step_ms_median"]) - 1
        close = {"idle_within": abs(idle) <= near, "step_within": abs(step) <= STEP_SHARE}
        found[arm] = {**mine, "idle_error_ms": idle, "step_error": step, **close}
    return found
