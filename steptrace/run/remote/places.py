"""The op that a thread is at: what a call that nobody waits for is attributed to."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from steptrace.diag.base import Note, SteptraceError
from steptrace.diag.loc import Loc
from steptrace.run.instance import At

_HERE = threading.local()


def placed(rule: Callable[..., Any]) -> Callable[..., Any]:
    """A rule that lets `here` tell which instance of which op it runs; goes around every op of a run."""

    def run(session: Any, at: At, *operands: Any) -> Any:
        before, _HERE.at = here(), at
        try:
            return rule(session, at, *operands)
        finally:
            _HERE.at = before  # an op of another run may have this run within it

    return run


def here() -> At | None:
    """The instance that this thread runs; None outside of one."""
    return getattr(_HERE, "at", None)


def made_at(error: Exception, loc: Loc | None) -> None:
    """Give an error of a call that no op has made the line that says what the part is."""
    if isinstance(error, SteptraceError):
        error.loc = error.loc or loc
    elif loc is not None and (note := f"the part is that of {loc}") not in getattr(error, "__notes__", ()):
        error.add_note(note)


def told(error: Exception, at: At | None, words: str) -> Exception:
    """An error of a call that its op did not wait for, with what made the call.

    Args:
      error: the error.
      at: the instance that made it, None where that is not known.
      words: the call in words.
    """
    loc = None if at is None else at.op.loc
    if at is not None:
        words = f"in `{at.op.id}` of step {at.step}, lane {at.op.lane}: {words}"
    if isinstance(error, SteptraceError):
        if all(note.text != words for note in error.notes):  # several lanes may wait for the call
            error.notes = (*error.notes, Note(words, loc if error.loc else None))
        error.loc = error.loc or loc
    elif (note := f"{words} ({loc})" if loc else words) not in getattr(error, "__notes__", ()):
        error.add_note(note)
    return error
