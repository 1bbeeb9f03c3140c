"""Trainers that behave as trainers are known to behave, without training: for tests of passes, schedules and runs.

Each runs in virtual time, as the trainer of `steptrace.simulate.simulate`, and in real time, bound as
``RealTimeTrainer(double)``. What they hold as parameters is a digest of what they were given, in order, so two runs
that train the same end with the same.

A double of one's own derives from `VirtualTrainer` or from one of these and changes verbs. A verb is a generator: it
yields the seconds that its caller spends in it, and returns what the verb returns; ``clock.send`` queues work on the
trainer's device and gives the moment at which it is done. Here is a trainer that does something on the device every
third update, and what a pass of one's own makes of it:

    from steptrace.lower import lower
    from steptrace.passes import run_pipeline
    from steptrace.lang.reference import resolve
    from steptrace.simulate import Cost, Durations, VirtualTrainer, simulate

    class Evaluates(VirtualTrainer):
        def update(self, clock):
            yield from super().update(clock)
            if self.applied % 3 == 0:
                self.idle_at = clock.send(2.0, what="evaluation")

    durations = Durations({"fwd_bwd": Cost(issue_s=0.5, work_s=4.0), "update": Cost(work_s=1.0)})
    schedule = run_pipeline(resolve("grpo{staleness=1}"), "take-ahead{depth=1}").schedule
    plan = lower(schedule.program, source=schedule.source)
    run = simulate(plan, durations, micro_batches=[3, 1, 2], trainer=Evaluates())
    assert run.trained == simulate(plan.base, durations, micro_batches=[3, 1, 2]).trained
    assert [span.step for span in run.on("trainer") if span.what == "evaluation"] == [2]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from steptrace.simulate import Clock, Cost, Feed, Verb, VirtualTrainer
from steptrace.simulate.trainer import named

Overflows = Literal["first", "last", "every", "none"]
"""Which micro-batches of a step drop tokens."""


class TokenWaitTrainer(VirtualTrainer):
    """Exposes the token of its last update, and nothing to wait for the device by.

    Its updates return once they have landed, unless the call that carries one says ``wait_for_update=False``. What it
    cannot wait for it cannot report, so it stages nothing, and holds back nothing.
    """

    capabilities = frozenset({"fused_update", "update_token"})
    stage_fwd_bwd = None  # type: ignore[assignment]
    fwd_bwd_staged = None  # type: ignore[assignment]
    apply_deferred_update = None  # type: ignore[assignment]
    wait_for_device = None  # type: ignore[assignment]

    def update(self, clock: Clock) -> Verb:
        """Apply what is accumulated; returns once it has landed."""
        yield from super().update(clock)
        yield clock.until(self.idle_at)


class DeviceWaitTrainer(VirtualTrainer):
    """Stages, and tells how long the device still worked when a micro-batch was in place; holds back no update."""

    capabilities = frozenset({"fused_update", "update_token"})
    apply_deferred_update = None  # type: ignore[assignment]


class OlderTrainer(VirtualTrainer):
    """An image from before the pipelined border: four verbs and checkpoints; no stage, no token, no options."""

    capabilities = frozenset()
    stage_fwd_bwd = None  # type: ignore[assignment]
    fwd_bwd_staged = None  # type: ignore[assignment]
    apply_deferred_update = None  # type: ignore[assignment]
    wait_for_device = None  # type: ignore[assignment]
    start_metrics = None  # type: ignore[assignment]
    fetch_metrics = None  # type: ignore[assignment]
    copy_weights = None  # type: ignore[assignment]
    snapshot_checkpoint = None  # type: ignore[assignment]
    write_checkpoint = None  # type: ignore[assignment]

    def fwd_bwd(self, clock: Clock, micro_batch: Any) -> Verb:  # type: ignore[override]
        """The whole call, which takes no options."""
        return super().fwd_bwd(clock, micro_batch)


class UpdatesAnywayTrainer(VirtualTrainer):
    """Says that it can hold an update back, and makes it anyway; its answer says so."""

    def train(self, clock: Clock, micro_batch: Any, arrived: float, closes: bool, defer: bool, wait: bool) -> Verb:
        """Run a micro-batch, and make the update where it was to be held back."""
        return super().train(clock, micro_batch, arrived, closes, False, wait)


class ReplayTrainer(VirtualTrainer):
    """Reruns micro-batches whose experts had too small a buffer and dropped tokens: dropless replay.

    The device raises a flag with a micro-batch that dropped some. The host reads flags one micro-batch late, and that
    of a step's last one inside the update, before it dispatches that: so the update, or the call that carries it,
    returns only once the last micro-batch has been computed. A rerun reads the inputs that were kept, counts once, and
    nothing of the attempt is left.

    Args:
      overflows: which micro-batches of a step drop tokens; ``none`` reads flags and reruns nothing.
    """

    def __init__(self, overflows: Overflows = "last") -> None:
        super().__init__()
        self.overflows = overflows
        self._open: tuple[Any, float] | None = None

    def flagged(self, micro_batch: Any) -> bool:
        """Whether a micro-batch drops tokens."""
        match self.overflows:
            case "first":
                return bool(micro_batch.index == 0)
            case "last":
                return bool(micro_batch.last)
            case "every":
                return True
            case "none":
                return False

    def attempted(self, micro_batch: Any, done: float) -> None:
        """Count a micro-batch unless it dropped tokens: what is rerun counts then."""
        self.idle_at = max(self.idle_at, done)
        if self.flagged(micro_batch):
            self.attempts.append((named(micro_batch), "dropped"))
        else:
            self.contribute(micro_batch)

    def train(self, clock: Clock, micro_batch: Any, arrived: float, closes: bool, defer: bool, wait: bool) -> Verb:
        """Run a micro-batch behind the one before, whose flag is read while this one computes."""
        done = clock.send(after=arrived)
        before, self._open = self._open, (micro_batch, done)
        self.attempted(micro_batch, done)
        yield from self.settled(clock, before)
        yield from self.bounded(clock, done)
        return (yield from self.closed(clock, closes, defer, wait))

    def settled(self, clock: Clock, attempt: tuple[Any, float] | None) -> Verb:
        """Read the flag of an attempt, and rerun it when it is raised."""
        if attempt is None:
            return
        micro_batch, done = attempt
        yield clock.until(done)
        if self.flagged(micro_batch):
            self.idle_at = clock.send(clock.cost_of("fwd_bwd").work_s, what="rerun")
            self.contribute(self.rerun_of(micro_batch), "rerun")

    def rerun_of(self, micro_batch: Any) -> Any:
        """What a rerun reads: the inputs that were kept."""
        return micro_batch

    def make_update(self, clock: Clock, cost: Cost, what: str = "") -> Verb:
        """Settle the step's last micro-batch, then dispatch the update."""
        attempt, self._open = self._open, None
        yield from self.settled(clock, attempt)
        yield from super().make_update(clock, cost, what)


class LostStageTrainer(VirtualTrainer):
    """One of its stages does not arrive.

    Args:
      at: which one, counted from 0.
    """

    def __init__(self, at: int = 0) -> None:
        super().__init__()
        self.at = at
        self.asked = 0

    def failure(self) -> Exception:
        """What the caller sees."""
        return ConnectionError("the link is down")

    def stage_fwd_bwd(self, clock: Clock, micro_batch: Any) -> Verb:
        """Ship a micro-batch, which may come to nothing."""
        self.asked += 1
        if self.asked - 1 == self.at:
            yield clock.cost.issue_s
            raise self.failure()
        return (yield from super().stage_fwd_bwd(clock, micro_batch))


class FailedStageTrainer(LostStageTrainer):
    """One of its stages arrives and raises in the trainer."""

    def failure(self) -> Exception:
        """What the caller sees."""
        return RuntimeError("the trainer is in an error state")


@dataclass(frozen=True, slots=True)
class SlowFeed(Feed):
    """Groups are there later than their generation has made them.

    Attributes:
      late_s: seconds.
      since: the first step whose groups are late.
    """

    late_s: float = 0.0
    since: int = 0

    def arrived(self, step: int, share: float, start: float, end: float) -> float:
        """When that share of a step's groups is there, in seconds."""
        there = Feed.arrived(self, step, share, start, end)
        return there + self.late_s if step >= self.since else there
