"""In the worker: which lent buffers are still read, known from the arrays that lie on them."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

_NAP = 0.002
_OLDER, _ALL = 16, 512
"""After how many naps garbage is collected that is older, and all of it: that takes longer, and stops the part."""


class Lending:
    """Watches lent buffers whose release was asked for, and says when the last array on them is gone.

    Args:
      say: called with the request's number.
    """

    def __init__(self, say: Callable[[int], None]) -> None:
        self._say = say
        self._readers: dict[int, list[weakref.ref[Any]]] = {}
        self._asked: set[int] = set()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def lend(self, request: int, readers: Sequence[weakref.ref[Any]]) -> None:
        """The buffers of a call are read in place from now on."""
        self._readers[request] = list(readers)

    def release(self, request: int) -> None:
        """Say so as soon as the buffers of a call are read no more."""
        self._asked.add(request)
        self._wake.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="steptrace-lent", daemon=True)
            self._thread.start()

    def _watch(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            naps = 0
            while self._asked:
                for request in sorted(self._asked):
                    if not any(reader() is not None for reader in self._readers.get(request, ())):
                        self._asked.discard(request)
                        self._readers.pop(request, None)
                        self._say(request)
                if self._asked and not self._wake.wait(_NAP):
                    naps += 1
                    # JAX lets go of what its finished computations held when garbage is collected
                    gc.collect(2 if naps % _ALL == 0 else 1 if naps % _OLDER == 0 else 0)
                self._wake.clear()
