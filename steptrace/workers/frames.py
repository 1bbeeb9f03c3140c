"""What goes over the socket: frames with a fixed head, and the proof of the run's secret before the first of them."""

from __future__ import annotations

import array
import contextlib
import enum
import hmac
import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_HEAD = struct.Struct("<BBIIQQQ")
"""Kind, ring, how many buffers, slot, request, oldest open request, bytes that follow."""
_BUFFER = struct.Struct("<QQ")
"""Bytes of a buffer, and where it starts: in the frame (0), or at this offset of the segment."""
_BODY = struct.Struct("<Q")
_NONCE = 32
_READ = 32 * 1024
_ANCILLARY = socket.CMSG_SPACE(4)
_CLOEXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


class Kind(enum.IntEnum):
    """What a frame is."""

    CALL = 1
    ASK = 2
    RELEASE = 3
    CLOSE = 4
    REPLY = 5
    ERROR = 6
    RECEIVED = 7
    RELEASED = 8
    BEAT = 9


_KINDS = {int(kind): kind for kind in Kind}


@dataclass(slots=True)
class Frame:
    """One message.

    Attributes:
      kind: what it is.
      request: the call it belongs to.
      open: the oldest call without an answer; answers before it need not be kept.
      body: the pickle.
      small: buffers that ride in the frame; b"" at the place of one that lies in a segment.
      spans: (offset, bytes) for each buffer, offset 0 for one that rides in the frame.
      ring: which ring of segments, 0 for none.
      slot: the slot of the ring.
      fd: the segment's file descriptor, -1 for none; the receiver owns the one it gets.
    """

    kind: Kind
    request: int = 0
    open: int = 0
    body: bytes | memoryview = b""
    small: Sequence[bytes | memoryview] = ()
    spans: Sequence[tuple[int, int]] = ()
    ring: int = 0
    slot: int = 0
    fd: int = -1


class Channel:
    """Frames over a connected socket: written by any thread, read by one.

    Args:
      sock: a stream socket whose other end has proved itself.
      tick: called whenever nothing came for the socket's timeout; it raises to end the wait.
    """

    def __init__(self, sock: socket.socket, tick: Callable[[], None] = lambda: None) -> None:
        self._sock = sock
        self._tick = tick
        self._writing = threading.Lock()
        self._room = bytearray(_READ)
        self._at = self._end = 0
        self._fds: list[int] = []

    def send(self, frame: Frame) -> None:
        """Write a frame whole. Where that is interrupted the connection ends, since a frame in part reads as nonsense.

        Raises:
          OSError: the other end is gone.
        """
        tail = _tail(frame)
        head = _HEAD.pack(frame.kind, frame.ring, len(frame.spans), frame.slot, frame.request, frame.open, len(tail))
        data = head + tail
        with self._writing:
            try:
                if frame.ring:
                    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [frame.fd]))]
                    data = data[self._sock.sendmsg([data], rights) :]
                self._sock.sendall(data)
            except BaseException:
                self.drop()
                raise

    def receive(self) -> Frame:
        """The next frame, in memory of its own.

        Raises:
          EOFError, OSError: the other end is gone.
          Exception: what ``tick`` raised.
        """
        while self._end - self._at < _HEAD.size:
            self._more()
        kind, ring, count, slot, request, open_, size = _HEAD.unpack_from(self._room, self._at)
        self._at += _HEAD.size
        frame = Frame(_KINDS[kind], request, open_, ring=ring, slot=slot)
        if size:
            _fill(frame, self._rest(size), count)
        if ring:
            frame.fd = self._fds.pop(0)
        return frame

    def _rest(self, size: int) -> memoryview:
        """The next bytes in memory of their own."""
        ready = min(size, self._end - self._at)
        rest = self._room[self._at : self._at + ready]
        self._at += ready
        if ready == size:
            return memoryview(rest)
        rest += bytes(size - ready)
        view = memoryview(rest)
        while ready < size:
            ready += self._received(view[ready:])
        return view

    def _more(self) -> None:
        """Read what there is behind the bytes that are not used yet, a part of a head at most."""
        left = self._room[self._at : self._end]
        self._room[: len(left)] = left
        self._at, self._end = 0, len(left)
        self._end += self._received(memoryview(self._room)[self._end :])

    def _received(self, view: memoryview) -> int:
        """How many bytes were read; file descriptors come in the order of the frames they belong to."""
        while True:
            try:
                got, ancillary, _, _ = self._sock.recvmsg_into([view], _ANCILLARY, _CLOEXEC)
                break
            except TimeoutError:
                self._tick()
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                self._fds += array.array("i", data)
        if not got:
            raise EOFError
        return got

    def drop(self) -> None:
        """Break the connection: both ends see its end."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Give the socket back, and file descriptors that came without their frame."""
        self._sock.close()
        while self._fds:
            os.close(self._fds.pop())


def _tail(frame: Frame) -> bytes:
    """What follows the head: sizes and places of buffers, the pickle, the small buffers, each at a multiple of 16."""
    if not frame.spans:
        return _BODY.pack(len(frame.body)) + frame.body if frame.body else b""
    table = b"".join(_BUFFER.pack(size, offset) for offset, size in frame.spans)
    rest = [table, _BODY.pack(len(frame.body)), frame.body]
    size = len(table) + _BODY.size + len(frame.body)
    for buffer in frame.small:
        rest += [bytes(-size % 16), buffer]
        size += -size % 16 + len(buffer)
    return b"".join(rest)


def _fill(frame: Frame, tail: memoryview, count: int) -> None:
    """Take a tail apart."""
    at = count * _BUFFER.size + _BODY.size
    (length,) = _BODY.unpack_from(tail, at - _BODY.size)
    frame.body = tail[at : at + length]
    at += length
    spans, small = [], []
    for index in range(count):
        size, offset = _BUFFER.unpack_from(tail, index * _BUFFER.size)
        at += -at % 16
        spans.append((offset, size))
        small.append(tail[at : at + (0 if offset else size)])
        at += len(small[-1])
    frame.spans, frame.small = spans, small


def challenge(sock: socket.socket, secret: bytes) -> bool:
    """The driver's side of the proof: whether the peer knows the secret. Reads 64 bytes at most, and parses none.

    Raises:
      OSError: the peer said nothing within the socket's timeout, or is gone.
    """
    mine = secrets.token_bytes(_NONCE)
    sock.sendall(mine)
    theirs, proof = _exactly(sock, _NONCE), _exactly(sock, _NONCE)
    if not hmac.compare_digest(proof, _proof(secret, b"worker", mine, theirs)):
        return False
    sock.sendall(_proof(secret, b"driver", theirs, mine))
    return True


def respond(sock: socket.socket, secret: bytes) -> bool:
    """The worker's side of the proof: it shows that it knows the secret, and whether the driver does."""
    theirs, mine = _exactly(sock, _NONCE), secrets.token_bytes(_NONCE)
    sock.sendall(mine + _proof(secret, b"worker", theirs, mine))
    return hmac.compare_digest(_exactly(sock, _NONCE), _proof(secret, b"driver", mine, theirs))


def _proof(secret: bytes, role: bytes, *nonces: bytes) -> bytes:
    return hmac.digest(secret, b"|".join((b"steptrace", role, *nonces)), "sha256")


def _exactly(sock: socket.socket, size: int) -> bytes:
    data, end = b"", time.monotonic() + (sock.gettimeout() or 0)
    while len(data) < size:
        if time.monotonic() > end:
            raise TimeoutError("the peer takes its time with the proof")
        more = sock.recv(size - len(data))
        if not more:
            raise ConnectionError("the peer left during the proof")
        data += more
    return data


def close_fd(fd: int) -> None:
    """Close a file descriptor that came with a frame, if one did."""
    if fd >= 0:
        os.close(fd)
