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


class MissingCompilerError(SteptraceError):
    """A program was to be compiled for devices whose compiler is not installed, or that it does not know.

    Compiling ahead of time needs no device, but it needs the compiler: for TPUs the package `libtpu`, which is large
    and therefore no dependency.

    Example::

        steptrace bench logps --tpu-topology tpu7x:4x4x8    # without libtpu

    Ways out: install `libtpu` in the version that belongs to the installed JAX; name a topology that it knows, with as
    many devices as divide the rows of the measurement; leave the option out to measure on the processor.
    """

    code = "ST602"
