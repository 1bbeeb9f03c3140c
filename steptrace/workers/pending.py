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
      slot: the slot of the ring, None when the call lent nothing.
      ask: tells the worker that the readers of a call should be done.
      call: the call.

    Attributes:
      asked: whether the release was asked for.
    """

    def __init__(
        self, slot: Slot | None = None, ask: Callable[[int], None] = print, call: Pending | None = None
    ) -> None:
        self._slot, self._ask, self._call = slot, ask, call
        self._free = threading.Event()
        self._failure: Exception | None = None
        self.asked = False
        if slot is None:
            self._free.set()

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
        if self._call is not None and not self.asked:
            self.asked = True
            self._ask(self._call.request)
        if wait and not self._free.wait(timeout):
            assert self._call is not None, "what was lent was lent to a call"
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
        if self._slot is not None:
            self._slot.free()
        self._slot, self._failure = None, failure
        self._free.set()


class Pending:
    """The answer to a call, once it comes.

    Attributes:
      method: what was called.
      request: the call's number, from 1 for each worker.
      place: the worker and the call in words.
      buffers: what was lent with the call.
      frame: the call as it is sent.
    """

    def __init__(self, method: str, frame: Frame, slot: Slot | None = None, deadline: float | None = None) -> None:
        self.method, self.frame = method, frame
        self.request, self.place = 0, ""
        self.buffers = Lent()
        self._slot = slot
        self.reply: Frame | None = None
        self._deadline = deadline
        self._done, self._received = threading.Event(), threading.Event()
        self._failure: Exception | None = None
        self._value: Any = None
        self._opening = threading.Lock()
        if not frame.ring:
            self._received.set()

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
        if not self._done.wait(limit):
            raise WorkerTimeoutError(f"{self.place} was not answered within {limit:g} s")
        with self._opening:
            self._open()
        if self._failure is not None:
            raise self._failure
        return self._value

    def done(self) -> bool:
        """Whether the answer is there."""
        return self._done.is_set()

    def sent(self, timeout: float | None = None) -> bool:
        """Wait until the worker has received the call's large arrays; False when it has not in ``timeout`` seconds.

        Small arrays were copied when the call was sent.
        """
        return self._received.wait(timeout)

    def _open(self) -> None:
        reply, self.reply = self.reply, None
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
        if self.frame.ring and self._received.is_set():
            return Frame(Kind.ASK, self.request)
        return self.frame

    def received(self) -> None:
        """The worker has the arrays; a segment that it copied from is free."""
        if self._slot is not None:
            self._slot.free()
        self._slot = None
        self._received.set()

    def answer(self, reply: Frame) -> None:
        """The answer is there; its buffers are in memory of their own."""
        self.reply = reply
        self.received()
        self._done.set()

    def fail(self, error: Exception) -> None:
        """There will be no answer."""
        self._failure = error
        self.received()
        self._done.set()
