"""``Worker``: the driver's end of a part that lives in a process of its own."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import secrets
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from steptrace.diag.base import Note
from steptrace.diag.workers import WorkerClosedError, WorkerLostError, WorkerStartError
from steptrace.workers import script, starting
from steptrace.workers.door import Door
from steptrace.workers.frames import Channel, Frame, Kind, Silence, close_fd
from steptrace.workers.packing import pack, unpicklable
from steptrace.workers.pending import Lent, Pending
from steptrace.workers.remote import Remote
from steptrace.workers.shared import Arena, Mapped, framed, placed

COPIED, LENT = 1, 2
"""The ring whose segments the worker copies from, and the one it reads in place."""
_COPIES = 4
BEATS = 5
"""Beats in the time of silence after which a worker is taken for lost."""
_ARRIVAL = 60.0
"""Seconds that a process is given to come in; it imports nothing of the user's before."""


class Worker:
    """A part in a process of its own, made by ``Worker.start``. Calls may come from any thread.

    Calls are executed one after another in the order in which they were sent.

    Attributes:
      name: how messages call it.
      facts: what the part is: ``verbs`` (names of its public methods), ``pid``, ``info`` (what its ``info()`` says),
        ``attrs`` (public attributes that are strings, numbers or truth values).
      deadline: seconds that ``call`` and ``result`` wait for an answer by default; None for no limit.
      faults: for tests: told the method and the number of each call, it may say "drop-request" or "drop-reply", and
        the connection breaks there.
    """

    def __init__(self, what: Remote, name: str, log: Path | None, heartbeat: float, slots: int) -> None:
        script.refuse_while_loading(what.loc)
        self.name, self.log, self._owner = name, log, os.getpid()
        self.facts: dict[str, Any] = {}
        self.deadline: float | None = None
        self.faults: Callable[[str, int], str | None] | None = None
        self._what, self._heartbeat = what, heartbeat
        self._numbers = itertools.count(0)
        self._open: dict[int, Pending] = {}
        self._lent: dict[int, Lent] = {}
        self._losing: set[int] = set()
        self._sending, self._state = threading.Lock(), threading.RLock()
        self._end, self._closed, self._closing = "", False, False
        self._missed, self._computed = 0, 0.0
        self._channel = Channel(socket.socket(socket.AF_UNIX))  # to nobody yet
        self._reader: threading.Thread | None = None
        self._arenas = {COPIED: Arena(COPIED, _COPIES, patience=1e9), LENT: Arena(LENT, slots)}
        self._mapped = Mapped()
        secret = secrets.token_bytes(32)
        self._door = Door(secret)
        boot = {"socket": self._door.path, "secret": secret.hex(), "heartbeat": heartbeat}
        self._process = starting.launch(name, boot, log)
        atexit.register(self.kill)

    @classmethod
    def start(
        cls,
        what: Remote,
        *,
        name: str = "worker",
        run_dir: str | os.PathLike[str] | None = None,
        heartbeat: float = 10.0,
        slots: int = 4,
    ) -> Worker:
        """Start a process and wait until the part is built in it.

        Args:
          what: the part, from ``steptrace.remote``.
          name: how messages call the worker.
          run_dir: a folder; what the worker prints goes to ``workers/<name>.log`` below it instead of standard error.
          heartbeat: seconds of silence, without any computing, after which the worker is taken for lost.
          slots: how many calls' buffers can be lent at a time.

        Raises:
          Exception: what making the part raised.
          WorkerStartError: the process ended before.
        """
        return cls.spawn(what, name=name, run_dir=run_dir, heartbeat=heartbeat, slots=slots).ready()

    @classmethod
    def spawn(
        cls,
        what: Remote,
        *,
        name: str = "worker",
        run_dir: str | os.PathLike[str] | None = None,
        heartbeat: float = 10.0,
        slots: int = 4,
    ) -> Worker:
        """Start a process, and do not wait for its part: several start at a time, and ``ready`` waits for each."""
        log = None
        if run_dir is not None:
            log = Path(run_dir) / "workers" / f"{name}.log"
            log.parent.mkdir(parents=True, exist_ok=True)
        return cls(what, name, log, heartbeat, slots)

    def ready(self) -> Worker:
        """Wait until the part is built; the worker itself.

        Raises:
          Exception: what making the part raised.
          WorkerStartError: the process ended before.
        """
        try:
            self._channel = self._arrived()
            self._reader = threading.Thread(target=self._read, name=f"steptrace-{self.name}", daemon=True)
            self._reader.start()
            self.facts = self._issue("build", "the part", (self._what,), {}).result()
        except WorkerLostError as error:
            self.kill()
            raise self._not_started() from error
        except BaseException:
            self.kill()
            raise
        return self

    def call(self, method: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the part and wait for what it returns; arrays come back as numpy arrays.

        Raises:
          Exception: the part's own error, with a note that names the worker.
          UnpicklableError: an argument cannot be sent.
          WorkerLostError, WorkerClosedError, WorkerTimeoutError: there is no answer.
        """
        return self._issue("call", method, args, kwargs).result()

    def send(self, method: str, /, *args: Any, lend: bool = False, **kwargs: Any) -> Pending:
        """Call a method of the part, and do not wait: the arguments may be overwritten once this returns.

        Args:
          method: the method's name.
          *args: its arguments.
          lend: whether the part reads large arrays in place, until ``pending.buffers.release()``.
          **kwargs: its named arguments.

        Raises:
          UnpicklableError: an argument cannot be sent.
          BuffersLentError: all buffers are lent out.
          WorkerLostError, WorkerClosedError: there is nobody to call.
        """
        return self._issue("call", method, args, kwargs, LENT if lend else COPIED)

    def get(self, attribute: str) -> Any:
        """An attribute of the part as it is after the calls that were sent so far."""
        return self._issue("get", attribute, (), {}).result()

    @property
    def calls_executed(self) -> int:
        """How many calls the worker has executed, as it counted them."""
        return int(self._issue("count", "calls", (), {}).result())

    @property
    def pid(self) -> int:
        """The worker's process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether calls can be sent."""
        return not self._end and self._process.poll() is None

    def close(self, timeout: float = 10.0) -> None:
        """Let the worker finish the calls it was sent, end it, and give back all that it used; again does nothing.

        Args:
          timeout: seconds before the process is killed.
        """
        with self._sending:
            first, self._closing = not self._closing, True
            if first:
                self._write(Frame(Kind.CLOSE))
        if first and not self._end:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout)
        self.kill()

    def kill(self) -> None:
        """End the process at once, and give back all that it used; calls under way fail."""
        if os.getpid() != self._owner:
            return  # a fork of the driver
        self._stop("", closed=True)
        if self._reader is not None and self._reader is not threading.current_thread():
            self._reader.join()
        self._channel.close()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._door.close()
        for arena in self._arenas.values():
            arena.close()
        atexit.unregister(self.kill)

    def _issue(
        self, operation: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], ring: int = COPIED
    ) -> Pending:
        """Send one call: its large arrays first, to a segment; then, in the order of the numbers, its frame."""
        try:
            packed = pack((operation, name, args, kwargs))
        except Exception as error:
            raise unpicklable(args, kwargs, error) from error
        if self._end:
            raise self._failure(name, 0)
        slot, spans = placed(self._arenas[ring], packed.buffers, f"`{name}`")
        frame = framed(Kind.CALL, packed, slot, spans)
        pending = Pending(name, frame, slot if ring == COPIED else None, self.deadline)
        with self._sending:
            self._enter(pending)
            if ring == LENT and slot is not None:
                slot.user = f"`{name}` (request {pending.request})"
                pending.buffers = self._lent[pending.request] = Lent(slot, self._ask_release, pending)
            fault = self.faults(name, pending.request) if self.faults and operation == "call" else None
            if fault == "drop-reply":
                self._losing.add(pending.request)
            if fault == "drop-request":
                self._channel.drop()
            else:
                self._write(frame)
        return pending

    def _enter(self, pending: Pending) -> None:
        """Give a call its number."""
        with self._state:
            if self._end or self._closing:
                raise self._failure(pending.method, 0)
            number = next(self._numbers)
            pending.frame.request = pending.request = number
            pending.place = f"worker `{self.name}` (process {self.pid}), `{pending.method}`, request {number}"
            self._open[number] = pending

    def _write(self, frame: Frame) -> None:
        frame.open = min(self._open, default=frame.request)
        try:
            self._channel.send(frame)
        except OSError:
            return  # the reader sees it too, and sends again what has no answer

    def _ask_release(self, request: int) -> None:
        with self._sending:
            self._write(Frame(Kind.RELEASE, request))

    def _arrived(self) -> Channel:
        """The connection of the process that was started."""
        end = time.monotonic() + _ARRIVAL
        while time.monotonic() < end and self._process.poll() is None:
            peer = self._door.next(0.02)
            if peer is not None:
                return self._channel_on(peer)
        raise self._not_started()

    def _channel_on(self, peer: socket.socket) -> Channel:
        peer.settimeout(self._heartbeat / BEATS)
        return Channel(peer, self._tick)

    def _read(self) -> None:
        """What the reading thread does: answers, notices and beats, until the worker is gone."""
        while not self._end:
            try:
                frame = self._channel.receive()
                self._missed = 0
                self._take(frame)
            except (EOFError, OSError):
                self._resume()
            except Silence:
                self._stop(f"gave no sign of life for {self._heartbeat:g} s and was killed")
            except Exception as error:
                self._stop(f"sent what cannot be read ({type(error).__name__}: {error})")

    def _take(self, frame: Frame) -> None:
        pending = self._open.get(frame.request)
        if frame.kind is Kind.RECEIVED and pending is not None:
            pending.received()
        elif frame.kind is Kind.RELEASED and (lent := self._lent.pop(frame.request, None)) is not None:
            lent.settle()
        elif frame.kind in (Kind.REPLY, Kind.ERROR):
            if frame.request in self._losing:
                self._losing.discard(frame.request)
                pending = None
                self._channel.drop()
            if pending is None:
                return close_fd(frame.fd)
            frame.small = self._mapped.copies(frame)
            self._mapped.free(frame)
            with self._state:
                self._open.pop(frame.request, None)
            pending.answer(frame)
        return None

    def _tick(self) -> None:
        """Nothing came for a beat. A process that computes without letting its heart beat is alive all the same."""
        self._missed += 1
        computed = starting.seconds_computed(self.pid)
        if computed is not None and computed > self._computed:
            self._computed, self._missed = computed, 0
        if self._missed >= BEATS:
            raise Silence

    def _resume(self) -> None:
        """After the end of the connection: once the worker is back, what has no answer is sent again."""
        end = time.monotonic() + self._heartbeat
        while self._process.poll() is None and time.monotonic() < end:
            peer = self._door.next(0.01)
            if peer is None:
                continue
            with self._sending:
                self._channel.close()
                self._channel = self._channel_on(peer)
                for pending in [self._open[number] for number in sorted(self._open)]:
                    self._write(pending.again())
                for request in [number for number, lent in self._lent.items() if lent.asked]:
                    self._write(Frame(Kind.RELEASE, request))
            return
        self._stop("" if self._process.poll() is not None else "broke its connection, did not come back and was killed")

    def _stop(self, reason: str, *, closed: bool = False) -> None:
        """The end of the worker: the process, and all that waits for it."""
        with self._state:
            if self._end:
                return
            self._process.kill()
            self._process.wait()
            self._closed = closed or self._closing
            self._end = "was closed" if self._closed else reason or starting.ended(self._process)
            waiting, self._open = self._open, {}
        for pending in waiting.values():
            pending.fail(self._failure(pending.method, pending.request, next(iter(waiting.values()))))
        for lent in self._lent.values():
            lent.settle(self._failure("release", 0))
        self._channel.drop()

    def _failure(
        self, method: str, request: int, current: Pending | None = None
    ) -> WorkerLostError | WorkerClosedError:
        """Why a call has no answer."""
        call = f"`{method}` (request {request}) has no answer" if request else f"`{method}` cannot be called"
        message = f"worker `{self.name}` (process {self.pid}) {self._end or 'was closed'}: {call}"
        if self._closed or not self._end:
            return WorkerClosedError(message)
        notes = [Note(f"it was executing `{current.method}` (request {current.request})")] if current else []
        if self.log is not None:
            notes.append(Note(f"its output is in {self.log}"))
        error = WorkerLostError(message, loc=self._what.loc, notes=tuple(notes))
        error.worker, error.method, error.request = self.name, method, request
        return error

    def _not_started(self) -> WorkerStartError:
        how = starting.ended(self._process)
        where = f"in {self.log}" if self.log else "on standard error"
        return WorkerStartError(
            f"worker `{self.name}` (process {self.pid}) {how} before {self._what} was built",
            loc=self._what.loc,
            help=f"its output is {where}",
        )
