"""A trainer in virtual time: the verbs of a trainer, each a generator that yields the seconds it lets pass."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Generator, Mapping
from typing import Any, Protocol, TypeAlias

from steptrace.simulate.durations import Cost

Verb: TypeAlias = Generator[float, None, Any]
"""What a verb is: it yields seconds that its caller spends in it, and returns what the verb returns."""

CALLED_IN_VIRTUAL_TIME = (
    "fwd_bwd",
    "fwd_bwd_staged",
    "stage_fwd_bwd",
    "update",
    "apply_deferred_update",
    "old_logps",
    "get_metrics",
    "start_metrics",
    "fetch_metrics",
    "weights",
    "copy_weights",
    "save_checkpoint",
    "snapshot_checkpoint",
    "write_checkpoint",
)
"""The verbs that a trainer may have."""


class Clock(Protocol):
    """What a verb sees of time, and of the trainer's device.

    Attributes:
      now: seconds since the run began.
      cost: what the op that is carried out takes.
    """

    @property
    def now(self) -> float:
        """Seconds since the run began."""
        ...

    @property
    def cost(self) -> Cost:
        """What the op that is carried out takes."""
        ...

    def cost_of(self, kind: str) -> Cost:
        """What another kind of op takes."""
        ...

    def ship(self) -> float:
        """Send the op's data on its way; gives the moment at which it arrives."""
        ...

    def send(self, work_s: float | None = None, *, after: float = 0.0, what: str = "") -> float:
        """Queue work on the trainer's device, by default the op's own; gives the moment at which it is done.

        Args:
          work_s: seconds of work, by default those of the op.
          after: the moment before which it cannot start.
          what: what it is, where it is not the op's own work.
        """
        ...

    def until(self, moment: float) -> float:
        """Seconds from now until a moment, 0 when it has passed."""
        ...


class Held(Exception):  # noqa: N818
    """A call that needs the step closed came while its update is held back."""


class VirtualTrainer:
    """A trainer with every verb and no arithmetic: what it trains is a digest of what it was given, in order.

    It blocks where a trainer on JAX does. Training calls return at dispatch, unless more than ``in_flight`` are not
    computed yet. A stage waits for the device once its micro-batch is in place, but not while an update is held back.
    A held update waits for the device first, then is made and confirmed.

    A double derives from it and changes verbs, or leaves them out with ``verb = None``. ``steptrace.testing.doubles``
    has those for what trainers are known to do, `steptrace.testing.RealTimeTrainer` runs any of them in real time.

    Attributes:
      capabilities: the words it advertises.
      in_flight: how many training calls may be dispatched and not computed; 2, as the trainer on JAX has it.
      attempts: the micro-batches that it ran, in order, with what became of them.
    """

    capabilities: frozenset[str] = frozenset({"stage_before_update", "fused_update", "update_token"})
    in_flight: int = 2

    def __init__(self) -> None:
        self.params = hashlib.sha256(b"").hexdigest()
        self.applied = 0
        self.attempts: list[tuple[str, str]] = []
        self.staged: tuple[int, Any, float] | None = None
        self.held = False
        self.idle_at = 0.0
        self._sums: list[str] = []
        self._requests = 0
        self._waiting: deque[float] = deque()

    def info(self) -> dict[str, Any]:
        """What it says of itself."""
        return {"capabilities": dict.fromkeys(sorted(self.capabilities), True)}

    @property
    def trained(self) -> str:
        """A digest of all that the parameters hold: equal for equal training."""
        return self.params

    # -- training calls --

    def fwd_bwd(
        self,
        clock: Clock,
        micro_batch: Any,
        *,
        apply_optimizer: bool = False,
        defer_update: bool = False,
        wait_for_update: bool = True,
    ) -> Verb:
        """The whole call: it ships the micro-batch and runs it."""
        self.refuse_held("another micro-batch")
        yield clock.cost.issue_s
        arrived = clock.ship()
        return (yield from self.train(clock, micro_batch, arrived, apply_optimizer, defer_update, wait_for_update))

    def fwd_bwd_staged(
        self,
        clock: Clock,
        request: Any,
        *,
        apply_optimizer: bool = False,
        defer_update: bool = False,
        wait_for_update: bool = True,
    ) -> Verb:
        """The call without data, on the micro-batch that is staged."""
        self.refuse_held("another micro-batch")
        assert self.staged is not None, "nothing is staged"
        assert self.staged[0] == request["request"], "another request is staged"
        (_, micro_batch, arrived), self.staged = self.staged, None
        yield clock.cost.issue_s
        return (yield from self.train(clock, micro_batch, arrived, apply_optimizer, defer_update, wait_for_update))

    def stage_fwd_bwd(self, clock: Clock, micro_batch: Any) -> Verb:
        """Ship a micro-batch for a later call."""
        assert self.staged is None, "one micro-batch is staged at a time"
        yield clock.cost.issue_s
        arrived = clock.ship()
        waited = None
        if not self.held:
            yield clock.until(arrived)
            waited = yield from self.wait_for_device(clock)
        self._requests += 1
        self.staged = (self._requests, micro_batch, arrived)
        return {"request": self._requests, "device_wait_s": waited, "update_ready": not self.held}

    def train(self, clock: Clock, micro_batch: Any, arrived: float, closes: bool, defer: bool, wait: bool) -> Verb:
        """Run a micro-batch that arrives at that moment; the step's last one may close the step."""
        done = clock.send(after=arrived)
        self.attempted(micro_batch, done)
        yield from self.bounded(clock, done)
        return (yield from self.closed(clock, closes, defer, wait))

    def closed(self, clock: Clock, closes: bool, defer: bool, wait: bool) -> Verb:
        """What the step's last call does behind its micro-batch: hold the update back, or make it."""
        if not closes:
            return None
        if defer:
            self.held = True
        else:
            yield from self.make_update(clock, clock.cost_of("update"), "update")
            if wait:
                yield clock.until(self.idle_at)
        return {"update_deferred": defer}

    def attempted(self, micro_batch: Any, done: float) -> None:
        """Count a micro-batch's gradient sums."""
        self.idle_at = max(self.idle_at, done)
        self.contribute(micro_batch)

    def contribute(self, micro_batch: Any, what: str = "") -> None:
        """Add what a micro-batch holds to the accumulator."""
        self._sums.append(content(micro_batch))
        self.attempts.append((named(micro_batch), what))

    def bounded(self, clock: Clock, done: float) -> Verb:
        """Keep what is in flight bounded."""
        self._waiting.append(done)
        if len(self._waiting) > self.in_flight:
            yield clock.until(self._waiting.popleft())

    def wait_for_device(self, clock: Clock) -> Verb:
        """Wait until the device has done all it was sent; returns the seconds that took."""
        waited = clock.until(self.idle_at)
        yield waited
        return waited

    # -- updates --

    def update(self, clock: Clock) -> Verb:
        """Apply what is accumulated; returns at dispatch."""
        self.refuse_held("an update")
        yield from self.make_update(clock, clock.cost)

    def make_update(self, clock: Clock, cost: Cost, what: str = "") -> Verb:
        """Dispatch the update, which takes ``cost``."""
        assert self._sums, "an update on nothing"
        yield cost.issue_s
        self.idle_at = clock.send(cost.work_s, what=what)
        self.params = hashlib.sha256(" ".join([self.params, *self._sums]).encode()).hexdigest()
        self._sums = []
        self.applied += 1

    def apply_deferred_update(self, clock: Clock) -> Verb:
        """Wait for the device, make the update that is held back, and confirm it."""
        assert self.held, "no update is held back"
        waited = yield from self.wait_for_device(clock)
        self.held = False
        yield from self.make_update(clock, clock.cost)
        yield clock.until(self.idle_at)
        return {"device_wait_s": waited, "update_ready": True}

    # -- what stands between two steps --

    def get_metrics(self, clock: Clock) -> Verb:
        """The metrics, once the update is confirmed."""
        self.refuse_held("metrics")
        yield clock.until(self.idle_at)
        yield clock.cost.issue_s + clock.cost.work_s
        return {"updates": float(self.applied)}

    def start_metrics(self, clock: Clock) -> Verb:
        """Set the metrics aside; waits for nothing."""
        self.refuse_held("metrics")
        yield from self._dispatched(clock)
        return {"updates": float(self.applied)}, self.idle_at

    def fetch_metrics(self, clock: Clock, aside: Any) -> Verb:
        """The metrics that were set aside."""
        metrics, ready = aside
        yield clock.until(ready)
        yield clock.cost.issue_s + clock.cost.work_s
        return metrics

    def weights(self, clock: Clock) -> Verb:
        """A copy of the parameters; waits for the last update, and for the copy."""
        self.refuse_held("weights")
        yield from self._dispatched(clock)
        yield clock.until(self.idle_at)
        return {"params": self.params}, self.applied

    def copy_weights(self, clock: Clock) -> Verb:
        """A copy of the parameters; returns at dispatch."""
        self.refuse_held("weights")
        yield from self._dispatched(clock)
        return {"params": self.params}, self.applied

    def old_logps(self, clock: Clock, micro_batch: Any) -> Verb:
        """Log-probs under the parameters as they are; returns at dispatch."""
        self.refuse_held("log-probs")
        yield from self._dispatched(clock)

    def save_checkpoint(self, clock: Clock) -> Verb:
        """Write the state once the device is drained."""
        self.refuse_held("a checkpoint")
        yield clock.until(self.idle_at)
        yield clock.cost.issue_s + clock.cost.work_s

    def snapshot_checkpoint(self, clock: Clock) -> Verb:
        """Copy the state."""
        self.refuse_held("a checkpoint")
        yield from self._dispatched(clock)
        return self.params

    def write_checkpoint(self, clock: Clock, snapshot: Any) -> Verb:
        """Write a copy of the state."""
        yield clock.cost.issue_s + clock.cost.work_s

    def refuse_held(self, what: str) -> None:
        """Refuse what needs the step closed, while its update is held back."""
        if self.held:
            raise Held(f"{what} was asked for while an update is held back")

    def _dispatched(self, clock: Clock) -> Verb:
        yield clock.cost.issue_s
        self.idle_at = max(self.idle_at, clock.send())


def content(micro_batch: Any) -> str:
    """What a micro-batch holds, as a digest: its place in the step, and the bytes of its arrays if it has some."""
    sha = hashlib.sha256(f"{named(micro_batch)} {micro_batch.last}".encode())
    arrays: Mapping[str, Any] = getattr(micro_batch, "arrays", {})
    for name in sorted(arrays):
        sha.update(name.encode())
        sha.update(arrays[name].tobytes())
    return sha.hexdigest()


def named(micro_batch: Any) -> str:
    """A micro-batch by name: its step and its place there."""
    return f"{micro_batch.step}.{micro_batch.index}"


def capabilities_of(trainer: Any) -> frozenset[str]:
    """Capabilities of a virtual trainer: ``trainer.<verb>`` for each that it has, and the words it advertises."""
    verbs = {f"trainer.{verb}" for verb in (*CALLED_IN_VIRTUAL_TIME, "wait_for_device") if _has(trainer, verb)}
    return frozenset(verbs | trainer.capabilities)


def _has(trainer: Any, verb: str) -> bool:
    return callable(getattr(trainer, verb, None))
