"""The worker: builds its part, and answers calls in the order of their issue, on its main thread."""

from __future__ import annotations

import faulthandler
import os
import queue
import select
import shutil
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from steptrace.diag.workers import UnpicklableError
from steptrace.workers import script
from steptrace.workers.errors import described
from steptrace.workers.frames import Channel, Frame, Kind, close_fd, respond
from steptrace.workers.lent import Lending
from steptrace.workers.packing import pack, result_path, unpack
from steptrace.workers.shared import Arena, Mapped, framed, placed

LENT = 2
"""The ring whose segments the worker reads in place."""
_REPLIES = 4


def main(boot: Mapping[str, Any]) -> None:
    """Serve until the driver closes this worker, or is gone.

    Args:
      boot: what the driver wrote to standard input.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()
    script.serves(*boot["script"])
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    driver = os.dup(0)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    _Server(boot, driver).run()


@dataclass
class _Server:
    """State of a worker; the part belongs to the main thread."""

    boot: Mapping[str, Any]
    driver: int
    part: Any = None
    executed: int = 0
    seen: int = -1
    calls: queue.SimpleQueue[tuple[Frame, list[Any]] | None] = field(default_factory=queue.SimpleQueue)
    kept: dict[int, Frame] = field(default_factory=dict)
    arena: Arena = field(default_factory=lambda: Arena(1, _REPLIES, patience=1e9))
    mapped: Mapped = field(default_factory=Mapped)
    closing: bool = False

    def run(self) -> None:
        """Answer calls until the driver closes."""
        self.channel = self._connected()
        self.lending = Lending(lambda request: self._tell(Frame(Kind.RELEASED, request)))
        for loop in (self._read, self._beat):
            threading.Thread(target=loop, name=f"steptrace{loop.__name__}", daemon=True).start()
        while (call := self.calls.get()) is not None:
            reply = self._answer(*call)
            request = call[0].request
            del call  # its arrays may be lent
            self.kept[request] = reply
            self._tell(reply)

    def _answer(self, frame: Frame, buffers: list[Any]) -> Frame:
        """Execute a call."""
        try:
            operation, name, args, kwargs = unpack(frame.body, buffers)
            result = self._execute(operation, name, args, kwargs)
            del args, kwargs, buffers
            return self._reply(frame.request, name, result)
        except BaseException as error:
            reply = Frame(Kind.ERROR, frame.request, body=described(error))
            error.__traceback__ = None  # its frames hold the arguments
            return reply

    def _reply(self, request: int, name: str, result: object) -> Frame:
        try:
            packed = pack(result)
        except Exception as error:
            raise UnpicklableError(
                f"{result_path(result)} of `{name}` cannot be sent back: {error}",
                help="return plain data and arrays",
            ) from error
        slot, spans = placed(self.arena, packed.buffers, f"the answer to `{name}`")
        reply = framed(Kind.REPLY, packed, slot, spans)
        reply.request = request
        return reply

    def _execute(self, operation: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        match operation:
            case "call":
                self.executed += 1
                return getattr(self.part, name)(*args, **kwargs)
            case "get":
                return getattr(self.part, name)
            case "count":
                return self.executed
            case _:
                self.part = args[0].build()
                return facts(self.part)

    def _tell(self, frame: Frame) -> None:
        try:
            self.channel.send(frame)
        except OSError:
            return  # the reader sees it too; what was said is asked for again

    def _connected(self) -> Channel:
        """A connection to the driver. A driver that is not there any more ends this process."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(60)
            sock.connect(self.boot["socket"])
            trusted = respond(sock, bytes.fromhex(self.boot["secret"]))
        except OSError:
            trusted = False
        if not trusted:
            self._orphaned()
        sock.settimeout(None)
        return Channel(sock)

    def _orphaned(self) -> None:
        """The driver is gone: end at once, and leave nothing of it, nor of what the part has forked."""
        shutil.rmtree(os.path.dirname(self.boot["socket"]), ignore_errors=True)
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    def _read(self) -> None:
        """What the reading thread does. An error of its own ends the process, since nobody would hear of it."""
        try:
            while not self.closing:
                self._next()
        except Exception:
            traceback.print_exc()
            os._exit(1)

    def _next(self) -> None:
        try:
            frame = self.channel.receive()
        except (EOFError, OSError):
            self.channel.close()
            self.channel = self._connected()
        else:
            self._take(frame)

    def _take(self, frame: Frame) -> None:
        """What is done with a frame as it comes in."""
        for request in list(self.kept):
            if request < frame.open:
                self.kept.pop(request)
        if frame.kind is Kind.CLOSE:
            self.closing = True
            self.calls.put(None)
        elif frame.kind is Kind.RELEASE:
            self.lending.release(frame.request)
        elif frame.request > self.seen:
            self.seen = frame.request
            buffers = self._buffers(frame)
            if frame.ring:
                self._tell(Frame(Kind.RECEIVED, frame.request))
            self.calls.put((frame, buffers))
        else:
            self._again(frame)

    def _buffers(self, frame: Frame) -> list[Any]:
        if frame.ring != LENT:
            return self.mapped.copies(frame)
        buffers, readers = self.mapped.views(frame)
        self.lending.lend(frame.request, readers)
        return buffers

    def _again(self, frame: Frame) -> None:
        """A call that is known already: its answer goes out once more, and nothing is executed."""
        if frame.ring:
            close_fd(frame.fd)
            self._tell(Frame(Kind.RECEIVED, frame.request))
        reply = self.kept.get(frame.request)
        if reply is not None:
            self._tell(reply)

    def _beat(self) -> None:
        """Say that this process lives; end it when the driver does not."""
        every = self.boot["beat"]
        while True:
            if select.select([self.driver], [], [], every)[0] and not os.read(self.driver, 1):
                self._orphaned()
            self._tell(Frame(Kind.BEAT))


def facts(part: object) -> dict[str, Any]:
    """What the driver may know of a part without asking: its verbs, what it says of itself, its plain attributes."""
    names = [name for name in dir(part) if not name.startswith("_")]
    values = {name: _value(part, name) for name in names}
    info = values.get("info")
    return {
        "pid": os.getpid(),
        "verbs": frozenset(name for name, value in values.items() if callable(value)),
        "attrs": {name: value for name, value in values.items() if isinstance(value, str | int | float | bool)},
        "info": dict(info() or {}) if callable(info) else {},
    }


def _value(part: object, name: str) -> object:
    """An attribute, None where reading it fails."""
    try:
        return getattr(part, name)
    except Exception:
        return None
