"""``Worker``: the driver's end of a part that lives in a process of its own."""

from __future__ import annotations

import atexit
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from steptrace.diag.base import Note, SteptraceError
from steptrace.diag.loc import Loc
from steptrace.diag.workers import WorkerClosedError, WorkerLostError, WorkerStartError
from steptrace.workers import script, starting
from steptrace.workers.door import Door
from steptrace.workers.frames import Kind
from steptrace.workers.link import BEATS, Link
from steptrace.workers.packing import pack, unpicklable
from steptrace.workers.pending import Pending
from steptrace.workers.remote import Remote
from steptrace.workers.shared import Arena, framed, placed

COPIED, LENT = 1, 2
"""The ring whose segments the worker copies from, and the one it reads in place."""
_COPIES = 4


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
        self.name, self.log, self._what, self._owner = name, log, what, os.getpid()
        self.facts: dict[str, Any] = {}
        self.deadline: float | None = None
        self.faults: Callable[[str, int], str | None] | None = None
        self._closed = False
        self._arenas = {COPIED: Arena(COPIED, _COPIES, patience=1e9), LENT: Arena(LENT, slots)}
        secret = secrets.token_bytes(32)
        self._door = Door(secret)
        boot = {"socket": self._door.path, "secret": secret.hex(), "beat": heartbeat / BEATS}
        try:
            self._process = starting.launch(name, boot, log)
        except BaseException:
            self._door.close()
            raise
        self._words = f"worker `{name}` (process {self._process.pid})"
        self._link = Link(self._process, self._door, heartbeat, self._failure, name)
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
            if not self._link.arrive():
                raise self._not_started()
            self.facts = self._issue("build", str(self._what), (self._what,), {}).result()
        except WorkerLostError as error:
            raise self._not_started() from error
        finally:
            if not self.facts:
                self.kill()
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
    def loc(self) -> Loc | None:
        """The line that says what the part is, if it is known."""
        return self._what.loc

    @property
    def alive(self) -> bool:
        """Whether calls can be sent."""
        return not self._link.end and starting.lives(self._process)

    def close(self, timeout: float = 10.0) -> None:
        """Let the worker finish the calls it was sent, end it, and give back all that it used; again does nothing.

        Args:
          timeout: seconds before the process is killed.
        """
        if self.facts and self._link.ask_to_close():
            starting.let_end(self._process, timeout)
        self.kill()

    def kill(self) -> None:
        """End the process and what it has forked at once, and give back all that it used; calls under way fail."""
        if os.getpid() != self._owner:
            return  # a fork of the driver
        self._closed = True
        self._link.stop("was closed")
        self._link.join()
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
        if self._link.end:
            raise self._failure(name)
        slot, spans = placed(self._arenas[ring], packed.buffers, f"`{name}`")
        frame = framed(Kind.CALL, packed, slot, spans)
        lent = slot if ring == LENT else None
        pending = Pending(name, self._words, frame, None if lent else slot, self.deadline)
        try:
            self._link.issue(pending, lent, self.faults if operation == "call" else None)
        except (WorkerLostError, WorkerClosedError):
            if slot is not None:
                slot.free()  # the call got no number, so nobody reads it
            raise
        return pending

    def _failure(self, method: str, request: int = 0, current: Pending | None = None) -> SteptraceError:
        """Why a call has no answer."""
        call = f"`{method}` (request {request}) has no answer" if request else f"`{method}` cannot be called"
        message = f"{self._words} {self._link.end or 'was closed'}: {call}"
        if self._closed or not self._link.end:
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
            f"{self._words} {how} before {self._what} was built",
            loc=self._what.loc,
            help=f"its output is {where}",
        )
