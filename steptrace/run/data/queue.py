"""The queue between those who generate groups and the step that trains them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict

from steptrace.diag.data import QueueOrderError
from steptrace.lang.records import Group, GroupId
from steptrace.run.data.queue_batch import Behind, Ledger, counts_of, refuse_stale, too_late
from steptrace.run.data.queue_intake import Intake

_LOOK_S = 0.02


class GroupQueue(Intake):
    """Groups of each step, keyed by their opaque id; safe to use from many threads.

    A step is announced with ``expect`` when it is dispatched, filled with ``put`` and ``drop`` in any order, read with
    ``take`` in dispatch order once every expected group has come or was dropped, and released with ``commit`` when
    it was trained. Two cursors: ``serving_cursor``, the first step not taken, and ``training_cursor``, the first
    not committed, which is what a checkpoint saves: groups taken ahead are taken again after a crash. A step to
    which nothing was admitted is a hole: ``take`` gives an empty tuple for it or may pass over it, and a commit
    moves past every hole that was already read past.

    A step that is announced with ``sealed=False`` is not complete before ``seal``: more groups may be announced for it;
    until it is taken ``unseal`` opens it again. A hole is a sealed step to which nothing was admitted.

    With ``max_staleness`` a group is admitted by the weights that are published when it is put, and its lag is looked
    at again when its step is taken and committed: time in the queue counts. The lag of a group is how many versions
    were published since the one that sampled it; whoever calls says so (``behind``).

    A dropped group makes its step smaller. Two other policies are the producer's to choose: ``drop`` with a
    ``replacement`` keeps the size, and ``fail`` ends the run.

    Args:
      capacity: how many steps may be expected and not committed.
      samples: completions a group must have; None takes any number but 0.
      incomplete: what to do with a group of fewer: refuse it, drop it, or train what is there ("shrink").
      max_staleness: how many versions may have been published since the one that sampled a group; None for any.
      timeout_s: how long ``take`` waits at most, in seconds, unless it is told otherwise.
    """

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

    def take(
        self, step: int, timeout_s: float | None = None, *, behind: Behind | None = None
    ) -> tuple[Group, ...] | None:
        """The groups of a step in dispatch order, once all came or were dropped.

        Args:
          step: the step.
          timeout_s: how long to wait, in seconds.
          behind: how many versions are published since a version; groups that are too old by now are given up.

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
                raise too_late(self._batches, step, limit)
            skipped = range(self._serving, min(step, self._next))
            if step < self._serving or not all(self._batches[earlier].is_hole() for earlier in skipped):
                raise QueueOrderError(f"step {step} is taken where step {self._serving} is due")
            if step >= self._next:
                return None
            self._serving = step + 1
            batch = self._batches[step]
            if behind is not None and self._max_staleness is not None:
                batch.drop_stale(behind, self._max_staleness)
            return tuple(batch.groups[name] for name in batch.order if name in batch.groups)

    def commit(self, step: int, *, behind: Behind | None = None) -> tuple[GroupId, ...]:
        """Release a trained step and every hole behind it that was read past; returns the ids trained.

        Args:
          step: the step.
          behind: how many versions were published since a version, when the step was trained.

        Raises:
          StaleGroupError: a group of it was trained that was too old.
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
            if behind is not None and self._max_staleness is not None:
                refuse_stale(self._batches[step], behind, self._max_staleness)
            trained = self._release()
            self._passed.clear()
            while self._training < self._serving and self._batches[self._training].is_hole():
                self._passed.add(self._training)
                self._release()
            self._changed.notify_all()
            return trained

    def await_commit(self, step: int, stopped: Callable[[], bool]) -> bool:
        """Wait until a step is committed; False when ``stopped`` says so before."""
        with self._changed:
            while self._training <= step and not stopped():
                self._changed.wait(_LOOK_S)
            return self._training > step

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
        position, ledger = counts_of(state)
        with self._changed:
            self._batches, self._passed = {}, set()
            self._next = self._serving = self._training = position
            self._ledger = ledger
            self._closed, self._failure = False, None
            self._changed.notify_all()

    def _settled(self, step: int) -> bool:
        """Whether all is known about the step: complete, or after the end, or already taken."""
        if step >= self._next:
            return self._closed
        return step < self._serving or self._batches[step].settled()

    def _release(self) -> tuple[GroupId, ...]:
        """Forget the first uncommitted step and count it; returns the ids trained, in dispatch order."""
        batch = self._batches.pop(self._training)
        self._training += 1
        self._ledger = self._ledger.with_batch(batch)
        return batch.trained()
