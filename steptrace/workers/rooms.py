"""Memory for arrays that were received, used again once no array lies on it: fresh pages cost more than the copy."""

from __future__ import annotations

import weakref
from typing import Any

ALIGNMENT = 64
"""Where arrays start; JAX on CPU computes on such memory as it is."""
_KEPT = 4


class Rooms:
    """Memory of a few received arrays. Taken by one thread."""

    def __init__(self) -> None:
        self._rooms: list[tuple[Any, weakref.ref[Any]]] = []

    def take(self, size: int) -> Any:
        """A writable array of ``size`` bytes, whose memory is nobody else's until the last array on it is gone."""
        import numpy as np

        free = [index for index, (_, taken) in enumerate(self._rooms) if taken() is None]
        fitting = [index for index in free if size <= self._rooms[index][0].size - ALIGNMENT <= 2 * size]
        if fitting:
            room, _ = self._rooms.pop(fitting[0])
        else:
            room = np.empty(size + ALIGNMENT, np.uint8)
            if free and len(self._rooms) >= _KEPT:
                del self._rooms[free[0]]
        skip = -room.ctypes.data % ALIGNMENT
        taken = room[skip : skip + size]
        if len(self._rooms) < _KEPT:
            self._rooms.append((room, weakref.ref(taken)))
        return taken
