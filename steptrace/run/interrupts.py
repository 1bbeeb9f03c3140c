"""Ctrl-C in a run: noted when it comes, since what it raises may get lost.

Python drops what is raised in a callback of its garbage collector. JAX has one, and it is often the first Python code
to run behind a long call of the compiler, so that it gets the interrupt that came during the call.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_came: list[KeyboardInterrupt] = []
"""Interrupts that were raised and may have got lost."""

Handler = Callable[[int, Any], Any]


@contextmanager
def noted() -> Iterator[None]:
    """Inside, an interrupt is raised where it comes, as ever; one that got lost is raised by `raise_lost`, or behind.

    Nothing is changed on another thread than the main one, or where interrupts are handled in another way already.
    """
    with handled(_raise) as changed:
        try:
            yield
            if changed:
                raise_lost()
        finally:
            if changed:
                _came.clear()


@contextmanager
def handled(handler: Handler) -> Iterator[bool]:
    """Inside, interrupts are handled so; gives whether they are: not where someone else has the say."""
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT)
    if not main or before not in (signal.default_int_handler, _raise):
        yield False
        return
    signal.signal(signal.SIGINT, handler)
    try:
        yield True
    finally:
        signal.signal(signal.SIGINT, before)


def raise_lost() -> None:
    """Raise an interrupt that has come and got lost, on the main thread.

    Raises:
      KeyboardInterrupt: there is one.
    """
    if _came and threading.current_thread() is threading.main_thread():
        raise _came.pop()


def _raise(number: int, frame: Any) -> None:
    _came[:] = [KeyboardInterrupt()]
    raise _came[0]
