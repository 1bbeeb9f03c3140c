"""A call that is under way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from steptrace.diag.workers import BufferHeldError, WorkerTimeoutError
from steptrace.workers.errors import rebuilt
from steptrace.workers.frames import Frame, Kind
from steptrace.workers.packing import unpack
from steptrace.workers.shared import Slot


class Lent:
    """The buffers of a call that the worker reads in place.

    Args:
      slot: the slot of the ring.
      ask: tells the worker that the readers of a call should be done.
      call: the call.

    Attributes:
      asked: whether the release was asked for.
    """

    def __init__(self, slot: Slot, ask: Callable[[int], None], call: Pending) -> None:
        self._slot, self._ask, self._call = slot, ask, call
        self._free = threading.Event()
        self._failure: Exception | None = None
        self._settled = False
        self.asked = False

    def release(self, timeout: float = 10.0, *, wait: bool = True) -> None:
        """Give the buffers back to the ring once nothing in the worker reads them any more.

        The worker watches every array that was made on the memory, JAX's included, so the buffers are free when the
        computations that read them are done and the part has let go of them.

        Args:
          timeout: seconds to wait.
          wait: False to return at once; the ring gets the buffers back when the worker says so.

        Raises:
          BufferHeldError: the part still holds them; they stay lent.
          WorkerLostError: the worker is gone.
        """
        if not self.asked:
            self.asked = True
            self._ask(self._call.request)
        if wait and not self._free.wait(timeout):
            raise BufferHeldError(
                f"the arrays lent to {self._call.place}, are still held there, {timeout:g} s after their release",
                help="release after the call that reads them last; a part that keeps an array must copy it",
            )
        if self._failure is not None:
            raise self._failure

    def released(self) -> bool:
        """Whether the ring has them back."""
        return self._free.is_set()

    def settle(self, failure: Exception | None = None) -> None:
        """The worker let go of them, or is gone."""
        if self._settled:
            return
        self._slot.free()
        self._settled, self._failure = True, failure
        self._free.set()


class NothingLent:
    """The buffers of a call whose arrays were copied."""

    def release(self, timeout: float = 10.0, *, wait: bool = True) -> None:
        """There is nothing to release."""

    def released(self) -> bool:
        """Whether the ring has them back: it always has."""
        return True


_NOTHING = NothingLent()


class Pending:
    """The answer to a call, once it comes.

    Args:
      method: what is called.
      worker: the worker in words.
      frame: the call as it is sent.
      slot: the segment that the worker copies from.
      deadline: seconds that ``result`` waits by default, None for no limit.

    Attributes:
      request: the call's number, from 1 for each worker.
      buffers: what was lent with the call.
    """

    def __init__(
        self, method: str, worker: str, frame: Frame, slot: Slot | None = None, deadline: float | None = None
    ) -> None:
        self.method, self.worker, self.frame = method, worker, frame
        self.request = 0
        self.buffers: Lent | NothingLent = _NOTHING
        self._slot, self._deadline = slot, deadline
        self._reply: Frame | None = None
        self._failure: Exception | None = None
        self._value: Any = None
        self._over = False
        self._waiting = threading.Lock()
        self._waiting.acquire()
        self._arrays = threading.Event() if frame.ring else None

    @property
    def place(self) -> str:
        """The worker and the call in words."""
        return f"{self.worker}, `{self.method}`, request {self.request}"

    def result(self, timeout: float | None = None) -> Any:
        """What the call returned.

        Args:
          timeout: seconds to wait; the worker's ``deadline`` when None.

        Raises:
          Exception: the part's own error, or WorkerCallError when it cannot be made again.
          WorkerTimeoutError: no answer in time; it may still come.
          WorkerLostError: the worker is gone.
        """
        limit = self._deadline if timeout is None else timeout
        if not self._waiting.acquire(timeout=-1 if limit is None else limit):
            raise WorkerTimeoutError(f"{self.place} was not answered within {limit:g} s")
        try:
            self._open()
        finally:
            self._waiting.release()
        if self._failure is not None:
            raise self._failure
        return self._value

    def done(self) -> bool:
        """Whether the answer is there."""
        return self._over

    def sent(self, timeout: float | None = None) -> bool:
        """Wait until the worker has received the call's large arrays; False when it has not in ``timeout`` seconds.

        Small arrays were copied when the call was sent.
        """
        return self._arrays is None or self._arrays.wait(timeout)

    def _open(self) -> None:
        reply, self._reply = self._reply, None
        if reply is None:
            return
        try:
            if reply.kind is Kind.ERROR:
                self._failure = rebuilt(reply.body, self.place)
            else:
                self._value = unpack(reply.body, reply.small)
        except Exception as error:
            error.add_note(f"while the answer of {self.place} was read")
            self._failure = error

    def again(self) -> Frame:
        """What is sent after the connection broke: the whole call, or a question when its arrays are there."""
        if self._arrays is not None and self._arrays.is_set():
            return Frame(Kind.ASK, self.request)
        return self.frame

    def received(self) -> None:
        """The worker has the arrays; a segment that it copied from is free."""
        slot, self._slot = self._slot, None
        if slot is not None:
            slot.free()
        if self._arrays is not None:
            self._arrays.set()

    def answer(self, reply: Frame) -> None:
        """The answer is there; its buffers are in memory of their own."""
        self._reply = reply
        self.received()
        self._waiting.release()
        self._over = True

    def fail(self, error: Exception) -> None:
        """There will be no answer."""
        self._failure = error
        self.received()
        self._waiting.release()
        self._over = True
