"""What a run leaves behind of itself when it is asked to: its events, and the costs of its ops."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from steptrace.cost.profile import SKIPPED, WAITED, WATCHED, profile_of
from steptrace.cost.profile_text import profile_text
from steptrace.diag.base import a_or_an
from steptrace.diag.binding import BadRunOptionError
from steptrace.diag.command import OutputNotWritableError
from steptrace.diag.timeline import NothingMeasuredError
from steptrace.run.executor import Rule
from steptrace.run.record import Recorder
from steptrace.run.session import Session
from steptrace.timeline import write_events

_LOG = logging.getLogger("steptrace")


class Keeping:
    """Put around ops, records a run and writes what was asked for behind its last step.

    Args:
      events: the file for its events; None for none.
      profile: the file for its costs; None for none.
      pipeline: the pipeline that it runs under, for both.
    """

    def __init__(self, events: Path | None, profile: Path | None, pipeline: str) -> None:
        self.recorder = Recorder()
        self._events, self._profile, self._pipeline = events, profile, pipeline

    def __call__(self, rule: Rule) -> Rule:
        """The rule, recorded."""
        return self.recorder.around(rule)

    def ended(self, session: Session) -> None:
        """Write the files.

        Raises:
          OutputNotWritableError: one cannot be written any more.
        """
        self.recorder.ended(session)
        recording = self.recorder.recording(pipeline=self._pipeline)
        try:
            if self._events is not None:
                write_events(recording, self._events)
            if self._profile is not None:
                plan = session.plan
                seen = WATCHED if self.recorder.wait is None else WAITED
                found = profile_of(recording.events, recording.spans, plan.program, plan.base.program, seen=seen)
                name = plan.base.program.name
                on_cpu = jax.default_backend() == "cpu"
                text = profile_text(found, program=name, pipeline=self._pipeline, note=recording.note, on_cpu=on_cpu)
                self._profile.write_text(text, encoding="utf-8")
        except OSError as error:
            raise OutputNotWritableError(f"cannot write `{error.filename}`: {error.strerror}") from error
        except NothingMeasuredError as error:
            session.remarks.append(f"{self._profile} was not written: {error.message}")
            _LOG.warning("%s", session.remarks[-1])

    def failed(self, session: Session) -> None:
        """Write the events up to the failure; costs are those of a run that went well."""
        self.recorder.failed(session)
        if self._events is not None:
            try:
                write_events(self.recorder.recording(pipeline=self._pipeline), self._events)
            except OSError as error:
                _LOG.warning("cannot write `%s`: %s", error.filename, error.strerror)


def keeping(events: Any, profile: Any, pipeline: str, steps: int | None, *, resume: bool) -> tuple[Keeping, ...]:
    """What is put around the ops of a run that leaves something behind; nothing for one that does not.

    Raises:
      BadRunOptionError: a path is none, or both are the same.
      OutputNotWritableError: a file cannot be written there.
      NothingMeasuredError: all the steps of the run compile.
    """
    if events is None and profile is None:
        return ()
    if profile is not None and steps is not None and steps <= SKIPPED and not resume:
        raise NothingMeasuredError(
            f"a profile of {steps} steps says nothing: the first {SKIPPED} compile", help="run more of them, 20 say"
        )
    kept = _file("events", events), _file("profile", profile)
    if kept[0] and kept[1] and kept[0].resolve() == kept[1].resolve():
        raise BadRunOptionError(
            f"events and profile are both to be written to `{kept[0]}`", help="give each a file of its own"
        )
    return (Keeping(*kept, pipeline),)


def behind(kept: tuple[Keeping, ...], waiter: Callable[[], None] | None) -> Callable[[], None] | None:
    """Who waits for the device in a timed run: a recorder sees calls and work apart by waiting itself."""
    for one in kept:
        one.recorder.wait = waiter
    return None if kept else waiter


def _file(option: str, path: Any) -> Path | None:
    """A file to be written, where it can be."""
    if path is None:
        return None
    if not isinstance(path, str | os.PathLike) or not os.fspath(path) or "\0" in str(path):
        raise BadRunOptionError(f"{option} is {a_or_an(type(path).__name__)}, {path!r}, and no path of a file")
    found = Path(path)
    if found.is_dir() or not found.parent.is_dir() or not os.access(found if found.exists() else found.parent, os.W_OK):
        raise OutputNotWritableError(
            f"cannot write the {option} of a run to `{found}`", help="name a file in a folder that is there"
        )
    return found
