"""Errors of recorded runs."""

from __future__ import annotations

from steptrace.diag.base import SteptraceError


class EventsFileError(SteptraceError):
    """A file with the events of a run cannot be read, or holds what cannot be of a run.

    Such a file is written by `steptrace run --events=events.json`. On one lane, and on one device, one thing comes
    after the other: bars that overlap, and waits for what is not there, are no run.

        steptrace timeline --measured=metrics.jsonl grpo     # error[ST640]: that is another file of the run

    Ways out: name the file that `--events` wrote; record the run again.
    """

    code = "ST640"


class NothingMeasuredError(SteptraceError):
    """A run ended before there was anything to take costs from.

    The first two steps compile, so their times say nothing: a profile is taken from the steps behind them.

        steptrace run grpo --steps=2 --profile=costs.toml    # error[ST641]

    Ways out: run more steps, 20 say; without a number of steps, give prompts for more.
    """

    code = "ST641"
