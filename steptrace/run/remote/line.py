"""The line to a part's process: calls that are waited for, and calls that are not.

A training call returns once it is on its way. At most `AHEAD` of them are unanswered: the next one waits for the
oldest, so that a run is never further ahead of the part's process. A failure of one is raised by the next call that
waits, with a note of the op that had made the call, and by every later one until `renew`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from steptrace.diag.remote import AfterFailureError
from steptrace.diag.workers import WorkerLostError, WorkerTimeoutError
from steptrace.lang.records import MicroBatch
from steptrace.run.instance import At
from steptrace.run.remote.loans import Loans, micro_batches
from steptrace.run.remote.places import here, made_at, told
from steptrace.run.remote.wire import Caller, How
from steptrace.workers import Pending, Worker

AHEAD = 2
"""How many calls may be unanswered that nobody waits for: the one the part is at, and one that is shipped meanwhile."""

_COURTESY_S = 0.005
_PLAIN = How()


@dataclass(frozen=True, slots=True)
class _Issued:
    """A call that nobody has waited for yet.

    Attributes:
      pending: its answer.
      words: the call in words.
      at: the op that made it, where that is known.
    """

    pending: Pending
    words: str
    at: At | None

    def told(self, error: Exception) -> Exception:
        """The failure of the call, with what made it."""
        return told(error, self.at, self.words)


class Line:
    """Calls of one part in its process, safe to make from every lane; they are carried out in the order of issue.

    Args:
      worker: the process.

    Attributes:
      wait_s: how long an answer is waited for, in seconds; None for without end.
      lends: whether the part reads micro-batches where they lie, until they are given back.
      loans: the calls that do.
      watching: whether the part's process watches its device, and is told which op makes a call.
      issued: how many calls were made.
    """

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.wait_s: float | None = None
        self.lends = self.watching = False
        self.loans = Loans()
        self.issued = 0
        self._issuing = threading.Lock()
        self._open: deque[_Issued] = deque()
        self._failure: Exception | None = None
        self._numbers = count(1)

    def number(self) -> int:
        """A number that nothing is kept under yet."""
        return next(self._numbers)

    def call(self, verb: str, *args: Any, how: How = _PLAIN, **given: Any) -> Any:
        """Call the part and wait for what it gives.

        Raises:
          whatever the part raises, and `WorkerLostError`; the failure of an earlier call that was not waited for.
          WorkerTimeoutError: there is no answer yet after ``wait_s``.
        """
        return self._waited(verb, (self._told_by_whom(how), *map(_absolute, args)), given)

    def ask(self, method: str, *args: Any) -> Any:
        """Call a method of what stands in front of the part."""
        return self._waited(method, args, {})

    def send(self, verb: str, *args: Any, keep: int = 0, **given: Any) -> Callable[[], Any]:
        """Call the part, and wait for nothing but that there is room for one more call.

        Returns:
          What waits for the answer, on whatever lane: gives it, or raises as `call` does.
        """
        while len(self._open) >= AHEAD:
            self._wait_for_oldest()
        self._check()
        at, words, how = here(), _words(verb, args), self._told_by_whom(How(keep, loose=True, read=()))
        pending, before = self._issue(
            verb, (how, *map(_absolute, args)), given, lambda pending: _Issued(pending, words, at)
        )

        def answer() -> Any:
            try:
                return pending.result(self.wait_s)
            except Exception as error:
                blamed = self._blamed(error, (*before, _Issued(pending, words, at)))
                raise blamed from blamed.__cause__

        return answer

    def let_pass(self, issued: int) -> None:
        """Let another lane's next call go first, if it comes within `_COURTESY_S`: what is asked for can wait.

        Args:
          issued: how many calls had been made when it was known that this one would be.
        """
        end = time.monotonic() + _COURTESY_S
        while self.issued <= issued and time.monotonic() < end:
            time.sleep(_COURTESY_S / 10)

    def settle(self) -> None:
        """Wait for every call that is on its way; raises the first failure that nobody has seen."""
        if self._failure is None:
            while self._open:
                self._wait_for_oldest()

    def renew(self) -> None:
        """Forget a failure, and what the part's process has kept: what is behind it is void."""
        while self._open:
            try:
                self._open.popleft().pending.result(self.wait_s)
            except Exception:
                continue
        self._failure = None
        self.worker.call("hosted_renew")
        self.loans.drop()

    def _waited(self, method: str, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
        self._check()
        pending, before = self._issue(method, args, given)
        try:
            made = pending.result(self.wait_s)
        except Exception as error:
            blamed = self._blamed(error, before)
            if here() is None:
                made_at(blamed, self.worker.loc)
            raise blamed from blamed.__cause__  # where it was raised in the part's process
        with self._issuing:  # what was issued before is done; what has failed of it, a later call tells
            while self._open and self._open[0] in before and not _failure(self._open[0].pending, self.wait_s):
                self._open.popleft()
        return made

    def _issue(
        self,
        method: str,
        args: tuple[Any, ...],
        given: dict[str, Any],
        opened: Callable[[Pending], _Issued] | None = None,
    ) -> tuple[Pending, tuple[_Issued, ...]]:
        """Send a call, with its micro-batches to be read in place where the part lends.

        Args:
          method, args, given: the call.
          opened: for one that nobody waits for: what is noted of it.

        Returns:
          Its answer to come, and the calls before it that nobody has waited for.
        """
        with self._issuing:
            before = tuple(self._open)
            self.issued += 1
            lends = self.lends and bool(micro_batches(args))
            try:
                pending = self.worker.send(method, *args, lend=lends, **given)
            except WorkerLostError as error:
                lost = error
            else:
                if lends:
                    self.loans.note(args, pending)
                if opened is not None:
                    self._open.append(opened(pending))
                return pending, before
        raise self._blamed(lost, before)

    def _told_by_whom(self, how: How) -> How:
        at = here() if self.watching else None
        if at is None:
            return how
        return replace(how, watched=Caller(at.op.id, at.op.kind, at.step, at.rounds[-1] if at.rounds else None))

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _wait_for_oldest(self) -> None:
        """Wait for the oldest call that nobody has waited for; raises what it has failed with."""
        self._check()
        with self._issuing:
            oldest = self._open[0] if self._open else None
        if oldest is None:
            return
        try:
            oldest.pending.result(self.wait_s)
        except Exception as error:
            failed = self._failed(oldest.told(error))
            raise failed from failed.__cause__
        with self._issuing:
            if self._open and self._open[0] is oldest:
                self._open.popleft()

    def _failed(self, error: Exception) -> Exception:
        with self._issuing:
            self._failure = self._failure or error
            return self._failure

    def _blamed(self, error: Exception, before: tuple[_Issued, ...]) -> Exception:
        """What a call ends with: the first failure of those before it, else its own."""
        for issued in before:
            if isinstance(error, AfterFailureError | WorkerLostError) or issued.pending.done():
                failure = _failure(issued.pending, self.wait_s)
                if failure is not None:
                    return self._failed(issued.told(failure))
            elif isinstance(error, WorkerTimeoutError):
                return issued.told(error)  # the part is still at a call before this one
        return error


def _failure(pending: Pending, wait_s: float | None) -> Exception | None:
    try:
        pending.result(wait_s)
    except Exception as error:
        return error
    return None


def _absolute(value: Any) -> Any:
    """A path as another process finds it too, whatever folder either works in by now."""
    return value.absolute() if isinstance(value, Path) else value


def _words(verb: str, args: tuple[Any, ...]) -> str:
    micro_batch = args[0] if args and isinstance(args[0], MicroBatch) else None
    if micro_batch is None:
        return f"the call of `{verb}`, which was not waited for"
    return f"the call of `{verb}` for micro-batch {micro_batch.index} of step {micro_batch.step}, not waited for"
