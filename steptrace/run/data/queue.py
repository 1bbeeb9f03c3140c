"""The queue between those who generate groups and the step that trains them."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

from steptrace.diag import Note
from steptrace.diag.data import (
    DataStateError,
    GroupCollisionError,
    IncompleteGroupError,
    ProducerFailedError,
    QueueClosedError,
    QueueFullError,
    QueueOrderError,
    TakeTimeoutError,
    UnexpectedGroupError,
)
from steptrace.lang.records import Group, GroupId


@dataclass(frozen=True, slots=True)
class Ledger:
    """What became of the committed steps.

    Attributes:
      groups: groups trained.
      dropped: groups given up.
      holes: steps to which no group was admitted.
    """

    groups: int = 0
    dropped: int = 0
    holes: int = 0


@dataclass(slots=True)
class _Batch:
    """The groups of one step: which are expected, in dispatch order, and what became of each."""

    order: list[GroupId]
    groups: dict[GroupId, Group] = field(default_factory=dict)
    dropped: dict[GroupId, str] = field(default_factory=dict)

    def missing(self) -> list[GroupId]:
        return [name for name in self.order if name not in self.groups and name not in self.dropped]

    def is_hole(self) -> bool:
        return not self.missing() and not self.groups


class GroupQueue:
    """Groups of each step, keyed by their opaque id; safe to use from many threads.

    A step is announced with ``expect`` when it is dispatched, filled with ``put`` and ``drop`` in any order, read with
    ``take`` in dispatch order once every expected group has come or was dropped, and released with ``commit`` when
    it was trained. Two cursors: ``serving_cursor``, the first step not taken, and ``training_cursor``, the first
    not committed, which is what a checkpoint saves: groups taken ahead are taken again after a crash. A step to
    which nothing was admitted is a hole: ``take`` gives an empty tuple for it or may pass over it, and a commit
    moves past every hole that was already read past.

    A dropped group makes its step smaller. Two other policies are the producer's to choose: ``drop`` with a
    ``replacement`` keeps the size, and ``fail`` ends the run.

    Args:
      capacity: how many steps may be expected and not committed.
      samples: completions a group must have; None takes any number but 0.
      incomplete: what to do with a group of fewer: refuse it, drop it, or train what is there ("shrink").
      timeout_s: how long ``take`` waits at most, in seconds, unless it is told otherwise.
    """

    def __init__(
        self,
        capacity: int = 1,
        *,
        samples: int | None = None,
        incomplete: Literal["refuse", "drop", "shrink"] = "refuse",
        timeout_s: float = 600.0,
    ) -> None:
        assert capacity >= 1, "a queue holds at least the step being trained"
        self._capacity = capacity
        self._samples = samples
        self._incomplete = incomplete
        self._timeout_s = timeout_s
        self._changed = threading.Condition()
        self._batches: dict[int, _Batch] = {}
        self._next = self._serving = self._training = 0
        self._passed: set[int] = set()
        self._closed = False
        self._failure: BaseException | None = None
        self._ledger = Ledger()

    @property
    def training_cursor(self) -> int:
        """The first step that is not committed."""
        return self._training

    @property
    def serving_cursor(self) -> int:
        """The first step that was not taken."""
        return self._serving

    @property
    def ledger(self) -> Ledger:
        """Counts over the committed steps."""
        return self._ledger

    def expect(self, step: int, ids: Sequence[GroupId], *, timeout_s: float = 0.0) -> None:
        """Announce groups of a step in dispatch order; a step with none at all is a hole.

        Args:
          step: the one after the step announced last; or that one again, to add groups before it is taken.
          ids: each unique among all groups not yet committed.
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
                raise QueueFullError(
                    f"step {step} cannot be dispatched: steps {self._training} to {self._next - 1} are not committed "
                    f"and the queue holds {self._capacity}"
                )
            self._batches.setdefault(step, _Batch([]))
            self._next = step + 1
            for name in ids:
                self._admit(step, name)
            self._changed.notify_all()

    def put(self, step: int, group: Group) -> None:
        """Deliver a group of a step.

        Raises:
          UnexpectedGroupError: the step does not wait for it.
          GroupCollisionError: it was delivered before.
          IncompleteGroupError: it has a wrong number of samples, and the policy is to refuse it.
        """
        with self._changed:
            batch = self._waiting(step, group.id)
            if group.step != step:
                raise UnexpectedGroupError(f"group {group.id} was generated for step {group.step}, not for step {step}")
            given, wanted = len(group.completions), self._samples
            if given == 0 or (wanted is not None and given != wanted):
                self._incomplete_group(batch, group, given, wanted)
            else:
                batch.groups[group.id] = group
            self._changed.notify_all()

    def drop(self, step: int, name: GroupId, reason: str, *, replacement: GroupId | None = None) -> None:
        """Give up a group of a step that did not come, with the reason; a replacement takes its place in the order.

        Raises:
          UnexpectedGroupError: the step does not wait for it.
          GroupCollisionError: it was delivered, or the replacement's id is taken.
        """
        with self._changed:
            batch = self._waiting(step, name)
            if replacement is not None:
                self._admit(step, replacement, place=batch.order.index(name))
            batch.dropped[name] = reason
            self._changed.notify_all()

    def take(self, step: int, timeout_s: float | None = None) -> tuple[Group, ...] | None:
        """The groups of a step in dispatch order, once all came or were dropped.

        Returns:
          the groups; an empty tuple for a hole; None when the data ended before this step.

        Raises:
          TakeTimeoutError: names the groups that are missing after ``timeout_s`` seconds.
          QueueOrderError: the step was taken, or a step before it with groups was not.
          ProducerFailedError: ``fail`` was called.
        """
        limit = self._timeout_s if timeout_s is None else timeout_s
        with self._changed:
            settled = self._changed.wait_for(lambda: self._failure is not None or self._settled(step), limit)
            self._refuse_failed()
            if not settled:
                raise self._late(step, limit)
            skipped = range(self._serving, min(step, self._next))
            if step < self._serving or not all(self._batches[earlier].is_hole() for earlier in skipped):
                raise QueueOrderError(f"step {step} is taken where step {self._serving} is due")
            if step >= self._next:
                return None
            self._serving = step + 1
            batch = self._batches[step]
            return tuple(batch.groups[name] for name in batch.order if name in batch.groups)

    def commit(self, step: int) -> tuple[GroupId, ...]:
        """Release a trained step and every hole behind it that was read past; returns the ids trained.

        Raises:
          QueueOrderError: the step was not taken, or a step before it is not committed.
        """
        with self._changed:
            if step in self._passed:
                self._passed.discard(step)
                return ()
            while self._training < min(step, self._serving) and self._batches[self._training].is_hole():
                self._release()
            if step != self._training or step >= self._serving:
                raise QueueOrderError(
                    f"step {step} is committed where the first uncommitted step is {self._training} "
                    f"and the first not taken is {self._serving}"
                )
            trained = self._release()
            self._passed.clear()
            while self._training < self._serving and self._batches[self._training].is_hole():
                self._passed.add(self._training)
                self._release()
            self._changed.notify_all()
            return trained

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

    def dropped(self, step: int) -> dict[GroupId, str]:
        """The groups given up in a step that is not committed, and why."""
        with self._changed:
            return dict(self._batches[step].dropped) if step in self._batches else {}

    def state(self) -> dict[str, int]:
        """What a checkpoint keeps, as JSON: the training cursor and the ledger.

        The same under every schedule: what was taken ahead is not in it, for it will be generated again.
        """
        with self._changed:
            return {"training_cursor": self._training, **asdict(self._ledger)}

    def restore(self, state: Mapping[str, object]) -> None:
        """Go on from a state: an empty queue that expects ``training_cursor`` next.

        Raises:
          DataStateError: it is no state of a queue.
        """
        names = ("training_cursor", "groups", "dropped", "holes")
        counts = [state.get(name) for name in names]
        whole = [count for count in counts if isinstance(count, int) and count >= 0]
        if len(whole) < len(names):
            raise DataStateError(f"the saved state of the queue is {dict(state)!r}; counts {', '.join(names)} are due")
        with self._changed:
            self._batches, self._passed = {}, set()
            self._next = self._serving = self._training = whole[0]
            self._ledger = Ledger(*whole[1:])
            self._closed, self._failure = False, None
            self._changed.notify_all()

    def _has_room(self) -> bool:
        """Whether a step can be announced, or will be refused for another reason."""
        return self._closed or self._failure is not None or self._next - self._training < self._capacity

    def _settled(self, step: int) -> bool:
        """Whether all is known about the step: complete, or after the end, or already taken."""
        if step >= self._next:
            return self._closed
        return step < self._serving or not self._batches[step].missing()

    def _refuse_failed(self) -> None:
        if self._failure is not None:
            raise ProducerFailedError(
                f"the producer of groups failed: {type(self._failure).__name__}: {self._failure}"
            ) from self._failure

    def _admit(self, step: int, name: GroupId, place: int | None = None) -> None:
        """Expect one more group in a step, unless its id is in use."""
        for other, batch in self._batches.items():
            if name in batch.order:
                raise GroupCollisionError(f"group {name} of step {step} is already a group of step {other}")
        order = self._batches[step].order
        order.insert(len(order) if place is None else place, name)

    def _waiting(self, step: int, name: GroupId) -> _Batch:
        """The step's batch, if it still waits for this group."""
        batch = self._batches.get(step)
        if batch is None or name not in batch.order:
            due = "is not open" if batch is None else "does not expect it"
            raise UnexpectedGroupError(f"group {name} comes for step {step}, which {due}")
        if name in batch.dropped:
            raise UnexpectedGroupError(f"group {name} of step {step} was dropped before: {batch.dropped[name]}")
        if name in batch.groups:
            raise GroupCollisionError(f"group {name} of step {step} was delivered before")
        return batch

    def _incomplete_group(self, batch: _Batch, group: Group, given: int, wanted: int | None) -> None:
        """Apply the declared policy to a group with another number of samples than wanted."""
        short = wanted is not None and 0 < given < wanted
        if self._incomplete == "drop" and given < (wanted or 1):
            batch.dropped[group.id] = f"{given} of {wanted or 1} samples"
        elif self._incomplete == "shrink" and short:
            batch.groups[group.id] = group
        else:
            raise IncompleteGroupError(
                f"group {group.id} of step {group.step} has {given} samples, "
                f"and {'at least 1' if wanted is None else wanted} are due"
            )

    def _late(self, step: int, limit: float) -> TakeTimeoutError:
        """The error of a wait that ended: what is missing, of every step that is open."""
        notes = tuple(
            Note(f"step {open_step} waits for {', '.join(str(name) for name in batch.missing())}")
            for open_step, batch in sorted(self._batches.items())
            if batch.missing()
        )
        what = (
            "it was never dispatched" if step >= self._next else f"{len(self._batches[step].missing())} groups missing"
        )
        return TakeTimeoutError(f"step {step} is not complete after {limit:g} s: {what}", notes=notes)

    def _release(self) -> tuple[GroupId, ...]:
        """Forget the first uncommitted step and count it; returns the ids trained, in dispatch order."""
        batch = self._batches.pop(self._training)
        self._training += 1
        self._ledger = Ledger(
            groups=self._ledger.groups + len(batch.groups),
            dropped=self._ledger.dropped + len(batch.dropped),
            holes=self._ledger.holes + (not batch.groups),
        )
        return tuple(name for name in batch.order if name in batch.groups)
