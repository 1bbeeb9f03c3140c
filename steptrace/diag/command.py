"""Codes of the command line and of what it writes."""

from __future__ import annotations

from steptrace.diag.base import SteptraceError


class OutputNotWritableError(SteptraceError):
    """A file or folder that was named for output cannot be written.

    Example::

        steptrace dump grpo -o missing/grpo.st   # the folder `missing` does not exist
        steptrace new /proc/job                  # a folder that cannot be made

    Ways out: name a folder you may write to; make the folder that shall hold the file; free disk space.
    """

    code = "ST600"


class WouldOverwriteError(SteptraceError):
    """A command that only makes new files found one of them there already.

    Nothing is written then, not even the files that are missing.

    Example::

        steptrace new job
        steptrace new job                        # job/job.py is there, perhaps with your changes

    Ways out: name another folder, or move the old files away.
    """

    code = "ST601"
