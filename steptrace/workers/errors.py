"""Errors on their way from a worker: their type where it can be made again, their text and traceback always."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable

from steptrace.diag.base import Note, SteptraceError
from steptrace.diag.workers import WorkerCallError
from steptrace.workers.packing import unpack


class WorkerTraceback(Exception):  # noqa: N818 - the cause of an error, raised by nobody
    """The traceback of an error as it was in the worker, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def described(error: BaseException) -> bytes:
    """An error as bytes. Never raises."""
    kind = type(error).__qualname__
    text = _made(lambda: str(error), "(its text cannot be made)")
    trace = _made(lambda: "".join(traceback.format_exception(error)), "")
    try:
        body = pickle.dumps(error)
        if type(unpack(body)) is not type(error) or not isinstance(error, Exception):
            body = b""
    except Exception:
        body = b""
    return pickle.dumps((body, kind, text, trace))


def _made(text: Callable[[], str], otherwise: str) -> str:
    """A text that code of the user's takes part in."""
    try:
        return text()
    except Exception:
        return otherwise


def rebuilt(body: bytes | memoryview, place: str) -> Exception:
    """The error that ``described`` wrote, with a note of the ``place`` where it was raised."""
    inner, kind, text, trace = unpack(body)
    note = f"raised in {place}"
    try:
        error = unpack(inner) if inner else None
    except Exception:
        error = None
    if isinstance(error, SteptraceError):
        error.notes = (*error.notes, Note(note))
    elif isinstance(error, Exception):
        error.add_note(note)
    else:
        error = WorkerCallError(f"{kind}: {text}", notes=(Note(note),))
    error.__cause__ = WorkerTraceback(trace.rstrip())
    return error
