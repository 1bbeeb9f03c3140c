"""Bulk memory between two processes: rings of segments without a name, which end with the last process that maps them.

A segment is an anonymous file whose descriptor goes over the socket. Nothing is left behind by a process that is
killed, and no limit of a file system for shared memory applies. Byte 0 says whether the segment is in use; data
starts at byte 64, each buffer at a multiple of 64.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
import threading
import time
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from steptrace.diag.workers import BuffersLentError
from steptrace.workers.frames import Frame, Kind, close_fd
from steptrace.workers.packing import Packed
from steptrace.workers.rooms import ALIGNMENT, Rooms

BULK = 64 * 1024
"""Buffers of as many bytes or more go through a segment."""
_NAP = 0.0005
NAME = "steptrace-segment"
"""How segments are listed among the open files of a process."""


@dataclass(slots=True, eq=False)
class Slot:
    """One place of a ring, and the segment that it has grown to.

    Attributes:
      ring: the ring's number.
      index: its place there.
      fd: the segment's file, -1 before the first use.
      map: its memory.
      user: what took it, for messages.
    """

    ring: int
    index: int
    fd: int = -1
    map: mmap.mmap | None = None
    user: str = ""

    def busy(self) -> bool:
        """Whether it was taken and not freed, by either process."""
        return self.map is not None and self.map[0] != 0

    def free(self) -> None:
        """It may be written again."""
        if self.map is not None and not self.map.closed:
            self.map[0] = 0

    def claim(self, size: int, user: str) -> None:
        """Take it, with room for ``size`` bytes."""
        if self.map is None or len(self.map) < size:
            self.discard()
            self.fd, self.map = _segment(1 << max(16, (size - 1).bit_length()))
        self.map[0], self.user = 1, user

    def discard(self) -> None:
        """Give the segment back; what the other process maps lives on there."""
        if self.map is not None:
            with contextlib.suppress(BufferError):  # a thread still writes to it: it goes with that thread's view
                self.map.close()
        close_fd(self.fd)
        self.fd, self.map = -1, None


def _segment(size: int) -> tuple[int, mmap.mmap]:
    """A file without a name, and its memory."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create(NAME)
    else:
        with tempfile.TemporaryFile(prefix=NAME) as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, size)
    return fd, mmap.mmap(fd, size)


class Arena:
    """A ring of a fixed number of segments; a slot that is in use is never handed out.

    Args:
      ring: its number, 1 or higher; each arena towards one peer has its own.
      slots: how many segments.
      patience: seconds to wait for a slot.
    """

    def __init__(self, ring: int, slots: int, patience: float = 10.0) -> None:
        self._slots = [Slot(ring, index) for index in range(slots)]
        self._lock = threading.Lock()
        self._closed = False
        self.patience = patience

    def take(self, size: int, user: str) -> Slot:
        """A free slot with room for ``size`` bytes.

        Raises:
          BuffersLentError: none became free in time.
        """
        end = time.monotonic() + self.patience
        while True:
            with self._lock:
                slot = next((slot for slot in self._slots if not slot.busy()), None)
                if slot is not None and not self._closed:
                    slot.claim(size, user)
                    return slot
            if self._closed or time.monotonic() > end:
                raise self._full(user)
            time.sleep(_NAP)

    def busy(self) -> int:
        """How many slots are in use."""
        return sum(slot.busy() for slot in self._slots)

    def close(self) -> None:
        """Give all segments back."""
        with self._lock:
            self._closed = True
            for slot in self._slots:
                slot.discard()

    def _full(self, user: str) -> BuffersLentError:
        if self._closed:
            return BuffersLentError(f"{user} asks for a buffer of a worker that is gone")
        holders = ", ".join(slot.user for slot in self._slots)
        return BuffersLentError(
            f"{user} waited {self.patience:g} s for a buffer: all {len(self._slots)} are in use, by {holders}",
            help="release the buffers of a call after its last reader, or give the worker more of them, `slots=`",
        )


def placed(arena: Arena, buffers: Sequence[memoryview], user: str) -> tuple[Slot | None, list[tuple[int, int]]]:
    """The large ones of ``buffers`` written to a slot; for each buffer its (offset, bytes), offset 0 for small ones."""
    spans, end = [], ALIGNMENT
    for buffer in buffers:
        bulk = buffer.nbytes >= BULK
        spans.append((end if bulk else 0, buffer.nbytes))
        end += -(-buffer.nbytes // ALIGNMENT) * ALIGNMENT if bulk else 0
    if end == ALIGNMENT:
        return None, spans
    import numpy as np

    slot = arena.take(end, user)
    assert slot.map is not None, "a slot that was taken has a segment"
    whole = np.frombuffer(slot.map, np.uint8)
    for buffer, (offset, size) in zip(buffers, spans, strict=True):
        if offset:
            np.copyto(whole[offset : offset + size], np.frombuffer(buffer, np.uint8))  # the interpreter's lock is free
    return slot, spans


def framed(kind: Kind, packed: Packed, slot: Slot | None, spans: Sequence[tuple[int, int]]) -> Frame:
    """The frame of a value whose large buffers were placed; the small ones are copied."""
    if not packed.buffers:
        return Frame(kind, body=packed.body)
    small = [b"" if offset else bytes(buffer) for buffer, (offset, _) in zip(packed.buffers, spans, strict=True)]
    frame = Frame(kind, body=packed.body, small=small, spans=spans)
    if slot is not None:
        frame.ring, frame.slot, frame.fd = slot.ring, slot.index, slot.fd
    return frame


@dataclass
class Mapped:
    """The peer's segments as they are mapped here."""

    _maps: dict[tuple[int, int], tuple[int, mmap.mmap]] = field(default_factory=dict)
    _rooms: Rooms = field(default_factory=Rooms)

    def of(self, frame: Frame) -> mmap.mmap:
        """The memory that a frame refers to; the frame's file descriptor is closed."""
        place, inode = (frame.ring, frame.slot), os.fstat(frame.fd).st_ino
        known = self._maps.get(place)
        if known is None or known[0] != inode:
            known = inode, mmap.mmap(frame.fd, 0)
            self._maps[place] = known  # an older segment lives as long as arrays on it
        close_fd(frame.fd)
        return known[1]

    def copies(self, frame: Frame) -> list[Any]:
        """The frame's buffers in memory of this process alone."""
        if not frame.ring:
            return list(frame.small)
        memory = self.of(frame)
        return [self._copy(memory, *span) if span[0] else small for small, span in _paired(frame)]

    def _copy(self, memory: mmap.mmap, offset: int, size: int) -> Any:
        import numpy as np

        copy = self._rooms.take(size)
        np.copyto(copy, np.frombuffer(memory, np.uint8)[offset : offset + size])
        return copy.data

    def free(self, frame: Frame) -> None:
        """The segment of a frame may be written again."""
        if frame.ring:
            self._maps[frame.ring, frame.slot][1][0] = 0

    def close(self) -> None:
        """Let go of all segments; arrays on them keep theirs."""
        self._maps.clear()

    def views(self, frame: Frame) -> tuple[list[Any], list[weakref.ref[Any]]]:
        """The frame's buffers in place, read-only; and what is dead once nothing reads them any more."""
        if not frame.ring:
            return list(frame.small), []
        memory = self.of(frame)
        roots = [_root(memory, *span) if span[0] else None for span in frame.spans]
        buffers = [
            small if root is None else memoryview(root) for (small, _), root in zip(_paired(frame), roots, strict=True)
        ]
        return buffers, [weakref.ref(root) for root in roots if root is not None]


def _paired(frame: Frame) -> Iterable[tuple[Any, tuple[int, int]]]:
    return zip(frame.small, frame.spans, strict=True)


def _root(memory: mmap.mmap, offset: int, size: int) -> Any:
    """An array on a part of a segment. Whatever is made on its memory keeps it alive."""
    import numpy as np

    root = np.frombuffer(memory, np.uint8)[offset : offset + size]
    root.flags.writeable = False
    return root
