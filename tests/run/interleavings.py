"""Two threads in every order that matters: the second one comes in at each place of the first, one run for each.

A place is an instruction of the interpreter, in the code of steptrace, of the test and of `threading`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

MOST = 5000
"""Places of a call that is tested, at most."""

_BLOCKED_S = 0.005
_STILL_S = 0.05
_ENDS_S = 10.0

Pair = tuple[Callable[[], Any], Callable[[], Any], Callable[[], Any]]
"""The function whose places are tried, the one that comes in, and one that says what is found behind both."""


class _Intruder:
    """Starts a function in a thread of its own at the n-th place; goes on once it has ended or is blocked by a lock."""

    def __init__(self, place: int, function: Callable[[], Any]) -> None:
        self.left = place
        self.thread = threading.Thread(target=function, daemon=True)

    def trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        home = frame.f_code.co_filename
        if "steptrace" not in home and not home.endswith(("threading.py", "test_waiting.py")):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and self.thread.ident is None:
            self.left -= 1
            if self.left < 0:
                sys.settrace(None)
                self.begin()
        return self.trace

    def begin(self) -> None:
        self.thread.start()
        self.thread.join(_BLOCKED_S)


def interleaved(make: Callable[[], Pair]) -> Iterator[Any]:
    """What is found behind each order: the second function at each place of the first, behind it or, where the first
    one waits, while it waits.

    Raises:
      AssertionError: a thread did not end.
      whatever the first function raised.
    """
    for place in range(MOST):
        first, second, found = make()
        intruder, errors = _Intruder(place, second), []
        tried = threading.Thread(target=_traced, args=(first, intruder, errors), daemon=True)
        tried.start()
        came_in = _comes_in(intruder, tried)
        if not came_in:
            intruder.begin()
        for thread in (tried, intruder.thread):
            thread.join(_ENDS_S)
            assert not thread.is_alive(), f"a thread has not ended; the other one came in at place {place}"
        if errors:
            raise errors[0]
        yield found()
        if not came_in:
            return
    raise AssertionError(f"more than {MOST} places")


def _comes_in(intruder: _Intruder, tried: threading.Thread) -> bool:
    """Whether the second thread was started in the first one, which otherwise has ended or stands still."""
    while intruder.thread.ident is None and tried.is_alive():
        left = intruder.left
        tried.join(_STILL_S)
        if tried.is_alive() and intruder.left == left and intruder.thread.ident is None:
            return False
    return intruder.thread.ident is not None


def _traced(function: Callable[[], Any], intruder: _Intruder, errors: list[BaseException]) -> None:
    sys.settrace(intruder.trace)
    try:
        function()
    except BaseException as error:
        errors.append(error)
    finally:
        sys.settrace(None)
