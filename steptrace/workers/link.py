"""The driver's end of the connection to one worker: calls by number, answers, beats, and what is sent again."""

from __future__ import annotations

import itertools
import socket
import subprocess
import threading
import time
from collections.abc import Callable

from steptrace.workers import starting
from steptrace.workers.door import Door
from steptrace.workers.frames import Channel, Frame, Kind, close_fd
from steptrace.workers.pending import Lent, Pending
from steptrace.workers.shared import Mapped, Slot

BEATS = 5
"""Beats in the time of silence after which a worker is taken for lost."""
_ARRIVAL = 60.0
"""Seconds that a process is given to come in; it imports nothing of the user's before."""

Fault = Callable[[str, int], str | None]
Failure = Callable[[str, int, Pending | None], Exception]


class _Silence(Exception):  # noqa: N818 - the reader ends the worker for it
    """Nothing came for as long as was agreed."""


class Link:
    """One worker's process, its connection, and the calls under way.

    Args:
      process: the process, started.
      door: where it comes in.
      heartbeat: seconds of silence, without any computing, after which it is lost.
      failure: makes the error of a call without an answer from its method, its number, and the call that was executed.

    Attributes:
      end: how the worker ended in words, "" while it lives.
      closing: whether this side wants it to end.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], door: Door, heartbeat: float, failure: Failure, name: str
    ) -> None:
        self.end, self.closing = "", False
        self._process, self._door, self._heartbeat, self._failure = process, door, heartbeat, failure
        self._channel = Channel(socket.socket(socket.AF_UNIX))  # to nobody yet
        self._sending, self._state = threading.Lock(), threading.RLock()
        self._numbers = itertools.count(0)
        self._open: dict[int, Pending] = {}
        self._lent: dict[int, Lent] = {}
        self._losing: set[int] = set()
        self._mapped = Mapped()
        self._missed, self._computed = 0, 0.0
        self._reader = threading.Thread(target=self._read, name=f"steptrace-{name}", daemon=True)

    def arrive(self) -> bool:
        """Wait for the process to come in; whether it did."""
        end = time.monotonic() + _ARRIVAL
        while time.monotonic() < end and starting.lives(self._process):
            peer = self._door.next(0.02)
            if peer is not None:
                self._channel.close()
                self._channel = self._channel_on(peer)
                self._reader.start()
                return True
        return False

    def issue(self, pending: Pending, lent: Slot | None = None, faults: Fault | None = None) -> None:
        """Give a call its number and send it.

        Args:
          pending: the call.
          lent: the segment that the worker reads in place.
          faults: a seam for tests, see ``Worker.faults``.

        Raises:
          Exception: what ``failure`` makes, when there is nobody to send it to.
        """
        with self._sending:
            with self._state:
                if self.end or self.closing:
                    raise self._failure(pending.method, 0, None)
                number = next(self._numbers)
                pending.frame.request = pending.request = number
                self._open[number] = pending
                if lent is not None:
                    lent.user = f"`{pending.method}` (request {number})"
                    pending.buffers = self._lent[number] = Lent(lent, self._ask_release, pending)
            fault = faults(pending.method, number) if faults else None
            if fault == "drop-reply":
                self._losing.add(number)
            if fault == "drop-request":
                self._channel.drop()
            else:
                self._write(pending.frame)

    def ask_to_close(self) -> bool:
        """Tell the worker that no call will follow; False when it was told before, or is gone."""
        with self._sending:
            if self.closing or self.end:
                return False
            self.closing = True
            self._write(Frame(Kind.CLOSE))
        return True

    def stop(self, reason: str = "") -> None:
        """End the process and what it has forked, fail all that waits for it; again does nothing.

        Args:
          reason: why, in words; how the process ended when "".
        """
        with self._state:
            if self.end:
                return
            starting.end(self._process)
            self.end = reason or starting.ended(self._process)
            waiting, self._open = self._open, {}
        current = next(iter(waiting.values()), None)
        for pending in waiting.values():
            pending.fail(self._failure(pending.method, pending.request, current))
        for lent in list(self._lent.values()):
            lent.settle(self._failure("release", 0, None))
        self._channel.drop()

    def join(self) -> None:
        """Wait for the reading thread after ``stop``, and give the socket back."""
        if self._reader.ident is not None and self._reader is not threading.current_thread():
            self._reader.join()
        self._channel.close()
        self._mapped.close()

    def _write(self, frame: Frame) -> None:
        with self._state:
            frame.open = next(iter(self._open), frame.request)
        try:
            self._channel.send(frame)
        except OSError:
            return  # the reader sees it too, and sends again what has no answer

    def _ask_release(self, request: int) -> None:
        with self._sending:
            self._write(Frame(Kind.RELEASE, request))

    def _channel_on(self, peer: socket.socket) -> Channel:
        peer.settimeout(self._heartbeat / BEATS)
        return Channel(peer, self._tick)

    def _read(self) -> None:
        """What the reading thread does until the worker is gone."""
        try:
            while not self.end:
                self._next()
        except _Silence:
            self.stop(f"gave no sign of life for {self._heartbeat:g} s and was killed")
        except Exception as error:
            self.stop(f"sent what cannot be read ({type(error).__name__}: {error}) and was killed")

    def _next(self) -> None:
        try:
            frame = self._channel.receive()
        except (EOFError, OSError):
            self._resume()
        else:
            self._missed = 0
            self._take(frame)

    def _take(self, frame: Frame) -> None:
        """What is done with a frame as it comes in."""
        pending = self._open.get(frame.request)
        if frame.kind in (Kind.REPLY, Kind.ERROR):
            self._answer(frame, pending)
        elif frame.kind is Kind.RECEIVED and pending is not None:
            pending.received()
        elif frame.kind is Kind.RELEASED and (lent := self._lent.pop(frame.request, None)) is not None:
            lent.settle()

    def _answer(self, frame: Frame, pending: Pending | None) -> None:
        if frame.request in self._losing:
            self._losing.discard(frame.request)
            self._channel.drop()
            pending = None
        if pending is None:
            return close_fd(frame.fd)
        frame.small = self._mapped.copies(frame)
        self._mapped.free(frame)
        with self._state:
            known = self._open.pop(frame.request, None)
        if known is not None:
            pending.answer(frame)
        return None

    def _tick(self) -> None:
        """Nothing came for a beat. A process that computes without letting its heart beat is alive all the same.

        The connection of one that has ended stays open where a process that it has forked holds it.
        """
        if not starting.lives(self._process):
            raise EOFError
        self._missed += 1
        computed = starting.seconds_computed(self._process.pid)
        if computed is not None and computed > self._computed:
            self._computed, self._missed = computed, 0
        if self._missed >= BEATS:
            raise _Silence

    def _resume(self) -> None:
        """After the end of the connection: once the worker is back, what has no answer is sent again."""
        end = time.monotonic() + self._heartbeat
        while starting.lives(self._process) and time.monotonic() < end:
            peer = self._door.next(0.01)
            if peer is not None:
                return self._send_again(peer)
        self.stop("" if not starting.lives(self._process) else "broke its connection, did not return and was killed")
        return None

    def _send_again(self, peer: socket.socket) -> None:
        with self._sending:
            self._channel.close()
            self._channel = self._channel_on(peer)
            for _, pending in sorted(self._open.items()):
                self._write(pending.again())
            for number in [number for number, lent in self._lent.items() if lent.asked]:
                self._write(Frame(Kind.RELEASE, number))
            if self.closing:
                self._write(Frame(Kind.CLOSE))
