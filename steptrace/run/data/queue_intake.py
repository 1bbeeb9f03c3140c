"""The side of the queue that those who generate groups see."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from steptrace.diag.data import ProducerFailedError, QueueClosedError, QueueOrderError, UnexpectedGroupError
from steptrace.lang.records import Group, GroupId
from steptrace.run.data.queue_batch import (
    Batch,
    Behind,
    Incomplete,
    Ledger,
    refuse_collision,
    too_full,
    too_old,
    waiting,
)


class Intake:
    """Steps that are announced, filled, sealed and ended: see `GroupQueue`, which is what it is a part of."""

    def __init__(
        self,
        capacity: int = 1,
        *,
        samples: int | None = None,
        incomplete: Incomplete = "refuse",
        max_staleness: int | None = None,
        timeout_s: float = 600.0,
    ) -> None:
        assert capacity >= 1, "a queue holds at least the step being trained"
        self._capacity = capacity
        self._samples = samples
        self._incomplete: Incomplete = incomplete
        self._max_staleness = max_staleness
        self._timeout_s = timeout_s
        self._changed = threading.Condition()
        self._batches: dict[int, Batch] = {}
        self._next = self._serving = self._training = 0
        self._passed: set[int] = set()
        self._closed = False
        self._failure: BaseException | None = None
        self._ledger = Ledger()

    def expect(
        self, step: int, ids: Sequence[GroupId], *, dropped: int = 0, sealed: bool = True, timeout_s: float = 0.0
    ) -> None:
        """Announce groups of a step in dispatch order; a step with none at all is a hole.

        Args:
          step: the one after the step announced last; or that one again, to add groups before it is taken.
          ids: each unique among all groups not yet committed.
          dropped: how many groups of the step were given up before they could be announced.
          sealed: whether these are all.
          timeout_s: how long to wait for room, in seconds.

        Raises:
          QueueFullError, GroupCollisionError, QueueOrderError, QueueClosedError, ProducerFailedError.
        """
        with self._changed:
            room = self._changed.wait_for(lambda: step < self._next or self._has_room(), timeout_s)
            self._refuse_failed()
            if self._closed:
                raise QueueClosedError(f"step {step} is dispatched after the end of the data")
            again = step == self._next - 1 and step >= self._serving
            if step != self._next and not again:
                raise QueueOrderError(f"step {step} is dispatched where step {self._next} is due")
            if not room and not again:
                raise too_full(step, self._training, self._next, self._capacity)
            batch = self._batches.setdefault(step, Batch([]))
            batch.sealed, batch.dropped_before = sealed, batch.dropped_before + dropped
            self._next = step + 1
            for name in ids:
                self._admit(step, name)
            self._changed.notify_all()

    def seal(self, step: int) -> None:
        """Declare that no more groups of a step will be announced. Raises `QueueOrderError` when it is not open."""
        self._set_sealed(step, True)

    def unseal(self, step: int) -> None:
        """Open a step again that was not taken. Raises `QueueOrderError` when it was, or was never announced."""
        self._set_sealed(step, False)

    def _set_sealed(self, step: int, sealed: bool) -> None:
        with self._changed:
            if step not in self._batches or step < self._serving:
                raise QueueOrderError(f"step {step} was {'taken' if step < self._serving else 'never announced'}")
            self._batches[step].sealed = sealed
            self._changed.notify_all()

    def put(self, step: int, group: Group, *, behind: Behind | None = None) -> None:
        """Deliver a group of a step; one that is too old by now is given up.

        Args:
          step: the step it was generated for.
          group: the group.
          behind: how many versions are published since a version, now.

        Raises:
          UnexpectedGroupError: the step does not wait for it.
          GroupCollisionError: it was delivered before.
          IncompleteGroupError: it has a wrong number of samples, and the policy is to refuse it.
        """
        with self._changed:
            batch = waiting(self._batches.get(step), step, group.id)
            if group.step != step:
                raise UnexpectedGroupError(f"group {group.id} was generated for step {group.step}, not for step {step}")
            lag = 0 if behind is None else behind(group.version)
            if self._max_staleness is not None and lag > self._max_staleness:
                batch.dropped[group.id] = too_old(group, lag, self._max_staleness)
            else:
                batch.admit(group, self._samples, self._incomplete)
            self._changed.notify_all()

    def drop(self, step: int, name: GroupId, reason: str, *, replacement: GroupId | None = None) -> None:
        """Give up a group of a step that did not come, with the reason; a replacement takes its place in the order.

        Raises:
          UnexpectedGroupError: the step does not wait for it.
          GroupCollisionError: it was delivered, or the replacement's id is taken.
        """
        with self._changed:
            batch = waiting(self._batches.get(step), step, name)
            if replacement is not None:
                self._admit(step, replacement, place=batch.order.index(name))
            batch.dropped[name] = reason
            self._changed.notify_all()

    def dropped(self, step: int) -> dict[GroupId, str]:
        """The groups given up in a step that is not committed, and why."""
        with self._changed:
            return dict(self._batches[step].dropped) if step in self._batches else {}

    def close(self) -> None:
        """Declare the end of the data: no step comes after those announced. Those who wait for one wake up."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Declare that the producer failed: everyone who waits, and everyone who comes, is told."""
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    def _has_room(self) -> bool:
        """Whether a step can be announced, or will be refused for another reason."""
        return self._closed or self._failure is not None or self._next - self._training < self._capacity

    def _refuse_failed(self) -> None:
        if self._failure is not None:
            raise ProducerFailedError(
                f"the producer of groups failed: {type(self._failure).__name__}: {self._failure}"
            ) from self._failure

    def _admit(self, step: int, name: GroupId, place: int | None = None) -> None:
        """Expect one more group in a step, unless its id is in use."""
        refuse_collision(self._batches, step, name)
        order = self._batches[step].order
        order.insert(len(order) if place is None else place, name)
