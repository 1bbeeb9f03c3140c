"""Where the user wrote the call that is being traced."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from steptrace.diag.loc import Loc

_TRANSPARENT = ("contextlib", "functools")
"""Modules of the standard library that call on behalf of the user."""


def user_frame() -> FrameType:
    """The innermost frame that belongs neither to the tracer nor to a module that only passes calls on."""
    frame: FrameType | None = sys._getframe(1)
    outermost = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if not (module == __package__ or module.startswith(f"{__package__}.") or module in _TRANSPARENT):
            return frame
        outermost, frame = frame, frame.f_back
    return outermost


def user_loc() -> Loc:
    """The user's file and line."""
    frame = user_frame()
    return Loc(frame.f_code.co_filename, frame.f_lineno)


def loc_of(function: Callable[..., Any]) -> Loc:
    """The line of a function's ``def``, past its decorators."""
    code = function.__code__
    first = code.co_firstlineno
    if code.co_name == "<lambda>":
        return Loc(code.co_filename, first)
    for line in range(first, first + 50):
        text = linecache.getline(code.co_filename, line).lstrip()
        if text.startswith(("def ", "async def ")):
            return Loc(code.co_filename, line)
    return Loc(code.co_filename, first)
