"""Progress of a job in the terminal: a bar, the newest figures, and where the time goes."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Mapping
from statistics import median
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

_SHOWN = (("reward", "reward {:.3f}"), ("kl", "KL {:.4f}"), ("entropy", "entropy {:.3f}"))
_LINES = 10
_PHASES = 6
_RECENT = 21


class Show:
    """What a job tells whoever watches it. Is a tracker, and is told the times of the phases by the run.

    On a terminal there is a live bar; elsewhere a line now and then. With ``quiet``, nothing is written to standard
    output, and nothing at all unless standard error is a terminal.

    Args:
      quiet: standard output belongs to someone else.
    """

    def __init__(self, *, quiet: bool) -> None:
        self.console = Console(stderr=quiet, highlight=False)
        self.quiet = quiet
        self._silent = quiet and not sys.stderr.isatty()
        self._live_wanted = self.console.is_terminal
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self.console,
        )
        self._live = Live(self._bar, console=self.console, refresh_per_second=4, transient=True)
        self._task: TaskID | None = None
        self._last = time.perf_counter()
        self._figures = self._times = ""
        self._seconds: dict[str, deque[float]] = {}

    def __enter__(self) -> Show:
        if self._live_wanted and not self._silent:
            self._live.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """Take the bar away: what is written from here on stays."""
        self._live.stop()

    def say(self, line: str) -> None:
        """One line of text."""
        if line and not self._silent:
            self.console.print(line, soft_wrap=True)

    def begin(self, what: str, total: int, done: int = 0) -> None:
        """A new stage of ``total`` updates, of which ``done`` were made before."""
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(what, total=total, completed=done)
        self._last = time.perf_counter()

    def warmup(self, done: int, loss: float) -> None:
        """Updates of the warm-up done, and the loss of the last one."""
        self._advance(done, f"cross entropy {loss:.3f}")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show the metrics of one step."""
        now = time.perf_counter()
        shown = [form.format(metrics[name]) for name, form in _SHOWN if name in metrics]
        pace = metrics.get("completion_tokens", 0.0) / max(now - self._last, 1e-9)
        self._last = now
        self._advance(step + 1, "  ".join([*shown, f"{pace:,.0f} tokens/s"]))

    def rewind(self, step: int, last_record: Mapping[str, float] | None) -> None:
        """The run goes on behind ``step``."""
        self._advance(step + 1, "")

    def phases(self, step: int, seconds: Mapping[str, float]) -> None:
        """Times of the ops of one step, by kind, in seconds; shown as medians of the last steps."""
        for kind, value in seconds.items():
            self._seconds.setdefault(kind, deque(maxlen=_RECENT)).append(value)
        recent = ((kind, median(values)) for kind, values in self._seconds.items())
        longest = sorted(recent, key=lambda item: -item[1])[:_PHASES]
        self._times = "  ".join(f"{kind} {value * 1e3:.1f}" for kind, value in longest) + " ms"

    def close(self) -> None:
        """The last step was logged; the bar goes with the context."""

    def _advance(self, done: int, figures: str) -> None:
        if self._silent or self._task is None:
            return
        self._figures = figures
        self._bar.update(self._task, completed=done)
        if self._live_wanted:
            self._live.update(Group(self._bar, Text(f"{self._figures}\n{self._times}")))
            return
        task = self._bar.tasks[0]
        total = int(task.total or 1)
        if figures and (done == total or done % max(1, total // _LINES) == 0):
            self.console.print(f"{task.description} {done}/{total}  {figures}", soft_wrap=True)
