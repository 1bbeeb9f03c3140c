"""Runs that may hang, die or leave something behind, each in a process of its own that is forked from this one.

A forked process has everything imported, so a cell costs a few milliseconds beside its run. Fork from a process that
has one thread and no device in use: a fresh one, not one in which JAX has computed something.

A cell is a generator that yields a `Child` for each process that it needs, and is sent what became of it:

    def cell():
        first = yield Child(partial(run, out))
        if first.signal:
            second = yield Child(partial(resume, out))
        return judged(first, second)

    rows = run_cells([cell() for ...], at_once=4)
"""

from __future__ import annotations

import ctypes
import os
import pickle
import selectors
import shutil
import signal
import struct
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from steptrace.workers.door import FOLDER
from steptrace.workers.shared import NAME

Tell: TypeAlias = Callable[[object], None]
"""Sends something to whoever started the process."""

T = TypeVar("T")

MARK = "STEPTRACE_CELL"
"""Environment variable of a cell's process and of those that it starts."""

_SUBREAPER = 36
_GRACE_S = 2.0
_LOOK_S = 0.005
_LENGTH = struct.Struct("!I")


@dataclass(frozen=True)
class Child:
    """A process that a cell needs.

    Attributes:
      work: what it does; what it returns can be pickled. It is given a function that tells the cell something.
      limit_s: after how many seconds it is killed.
      behind_s: how many seconds behind the last thing that it has told it is killed; None for no such limit.
    """

    work: Callable[[Tell], object]
    limit_s: float = 60.0
    behind_s: float | None = None


@dataclass(frozen=True)
class Ended:
    """What became of a process.

    Attributes:
      value: what its work returned; None where it did not.
      signal: what killed it, 0 when it ended by itself.
      hung: whether it was killed because it did not end.
      error: the stack of an error in its work, "" if there was none.
      told: what it has told.
      left: what was left when it ended: threads, open files, processes, segments of shared memory, folders of sockets.
      seconds: how long it lived.
    """

    value: Any = None
    signal: int = 0
    hung: bool = False
    error: str = ""
    told: tuple[Any, ...] = ()
    left: tuple[str, ...] = ()
    seconds: float = 0.0


Cell: TypeAlias = Generator[Child, Ended, T]


@dataclass
class _Running:
    """A process that is under way."""

    number: int
    cell: Generator[Child, Ended, Any]
    child: Child
    pid: int
    pipe: int
    folder: str
    start: float
    buffer: bytearray = field(default_factory=bytearray)
    messages: list[tuple[str, Any]] = field(default_factory=list)
    told_at: float = 0.0
    hung: bool = False

    @property
    def due(self) -> float:
        """When it is killed."""
        end = self.start + self.child.limit_s
        if self.child.behind_s is None or not self.told_at:
            return end
        return min(end, self.told_at + self.child.behind_s)


def run_cells(cells: Iterable[Cell[T]], *, at_once: int = 2) -> Iterator[T]:
    """Run cells, some at a time; gives their results in the order in which they end.

    Args:
      cells: the cells; those that are not needed yet are not made yet.
      at_once: how many processes at a time.
    """
    _adopt_orphans()
    waiting, running = enumerate(cells), dict[int, _Running]()
    with selectors.DefaultSelector() as selector:
        try:
            while True:
                while len(running) < at_once and (following := next(waiting, None)) is not None:
                    _start(following[0], following[1], next(following[1]), running, selector)
                if not running:
                    return
                for done in _through(running, selector):
                    try:
                        child = done.cell.send(_ended(done))
                    except StopIteration as stop:
                        yield stop.value
                    else:
                        _start(done.number, done.cell, child, running, selector)
        finally:
            for left in running.values():
                os.kill(left.pid, signal.SIGKILL)
                os.waitpid(left.pid, 0)
                shutil.rmtree(left.folder, ignore_errors=True)


def processes_of(mark: str) -> list[int]:
    """The processes that have a mark in their environment, this one and those that are dead aside."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}\0".encode() in (place / "environ").read_bytes() and int(place.name) != os.getpid():
                found.append(int(place.name))
        except OSError:
            continue
    return found


def _adopt_orphans() -> None:
    """Processes whose parent dies become children of this one, and can be seen to end."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)


def _start(
    number: int,
    cell: Generator[Child, Ended, Any],
    child: Child,
    running: dict[int, _Running],
    selector: selectors.BaseSelector,
) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    reads, writes = os.pipe()
    folder = tempfile.mkdtemp(prefix="cell-")
    pid = os.fork()
    if pid == 0:
        os.close(reads)
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        _work(child, writes, f"{os.getppid()}.{number}")
    os.close(writes)
    os.set_blocking(reads, False)
    selector.register(reads, selectors.EVENT_READ, pid)
    running[pid] = _Running(number, cell, child, pid, reads, folder, time.monotonic())


def _work(child: Child, pipe: int, mark: str) -> None:
    """What a child does; it never returns."""
    os.environ[MARK] = mark
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)

    def tell(what: str, value: object) -> None:
        data = pickle.dumps((what, value))
        os.write(pipe, _LENGTH.pack(len(data)) + data)

    code = 1
    try:
        before, value = _files(), child.work(lambda told: tell("told", told))
        tell("left", _left(before, mark))
        tell("value", value)
        code = 0
    except BaseException:
        tell("error", traceback.format_exc())
    finally:
        os._exit(code)


def _left(files: Counter[str], mark: str) -> tuple[str, ...]:
    """What a run has left in its process: threads, open files, processes; those that are ending have a while."""
    end = time.monotonic() + _GRACE_S
    while True:
        threads = [f"thread {thread.name}" for thread in threading.enumerate()][1:]
        processes = [f"process {pid}" for pid in {*_children(), *processes_of(mark)}]
        left = (*threads, *processes, *_more(files))
        if not left or time.monotonic() > end:
            return left
        time.sleep(_LOOK_S)


def _children() -> list[int]:
    """The processes that this one has started and not waited for."""
    found: list[int] = []
    for place in Path("/proc/self/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # those of a thread that has just ended
            found += map(int, place.read_text().split())
    return found


def _files() -> Counter[str]:
    """How many open files this process has, segments of shared memory aside, and how many segments."""
    found = Counter[str]()
    for place in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # that of the listing itself
            found["segments" if NAME in os.readlink(place) else "open files"] += 1
    return found


def _more(files: Counter[str]) -> list[str]:
    return [f"{count} {what}" for what, count in (_files() - files).items()]


def _through(running: dict[int, _Running], selector: selectors.BaseSelector) -> list[_Running]:
    """Wait a little; gives the processes that have ended, and kills those that should have."""
    now = time.monotonic()
    soonest = min(one.due for one in running.values())
    done = []
    for key, _ in selector.select(max(0.0, min(1.0, soonest - now))):
        one = running[key.data]
        data = os.read(one.pipe, 1 << 20)
        one.buffer += data
        _parse(one)
        if not data:
            selector.unregister(one.pipe)
            os.close(one.pipe)
            del running[one.pid]
            done.append(one)
    for one in running.values():
        if time.monotonic() > one.due and not one.hung:
            one.hung = True
            os.kill(one.pid, signal.SIGKILL)
    return done


def _parse(one: _Running) -> None:
    """Take whole messages off what was read."""
    while len(one.buffer) >= _LENGTH.size:
        (length,) = _LENGTH.unpack_from(one.buffer)
        if len(one.buffer) < _LENGTH.size + length:
            return
        message = pickle.loads(bytes(one.buffer[_LENGTH.size : _LENGTH.size + length]))
        del one.buffer[: _LENGTH.size + length]
        one.messages.append(message)
        if message[0] == "told":
            one.told_at = time.monotonic()


def _ended(one: _Running) -> Ended:
    _, status = os.waitpid(one.pid, 0)
    killed = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    said = dict(one.messages)
    orphans = _orphans(f"{os.getpid()}.{one.number}")
    sockets = [f"folder {place.name}" for place in Path(one.folder).glob(f"{FOLDER}*")]
    shutil.rmtree(one.folder, ignore_errors=True)
    return Ended(
        value=said.get("value"),
        signal=killed,
        hung=one.hung,
        error=said.get("error", ""),
        told=tuple(value for what, value in one.messages if what == "told"),
        left=(*said.get("left", ()), *orphans, *sockets),
        seconds=time.monotonic() - one.start,
    )


def _orphans(mark: str) -> list[str]:
    """Processes that a cell's process has left behind; they have a while to see that it is gone."""
    end = time.monotonic() + _GRACE_S
    while True:
        found = processes_of(mark)
        for pid in found:
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                continue
        if not found or time.monotonic() > end:
            return [f"process {pid}" for pid in found]
        time.sleep(_LOOK_S)
