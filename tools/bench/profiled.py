"""The device's work as `jax.profiler` saw it: an independent look at what a watching thread says."""

from __future__ import annotations

import tempfile
import time
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .watched import Seen

Interval = tuple[float, float]
"""Begin and end, in seconds of ``time.perf_counter``."""

AGREE_MS, AGREE_SHARE = 3.0, 0.1
"""How far apart the two looks at a gap may be: this many milliseconds, or this share of it where that is more.

The profiler sees some 2 ms between programs that a watching thread counts as busy."""

_ZERO = "steptrace-zero"


class Profiled:
    """Takes a trace from its making on."""

    def __init__(self) -> None:
        import jax

        options = jax.profiler.ProfileOptions()
        options.python_tracer_level, options.host_tracer_level = 0, 2
        self._folder = tempfile.TemporaryDirectory(prefix="steptrace-profile-")
        jax.profiler.start_trace(self._folder.name, profiler_options=options)
        with jax.profiler.TraceAnnotation(_ZERO):
            self._zero = time.perf_counter()

    def busy(self) -> list[Interval]:
        """End the trace; gives when threads of the device worked, joined and in order."""
        import jax

        jax.profiler.stop_trace()  # type: ignore[no-untyped-call]
        with self._folder as folder:
            (file,) = Path(folder).rglob("*.xplane.pb")
            data = jax.profiler.ProfileData.from_file(str(file))
        events = [(line.name, event) for plane in data.planes for line in plane.lines for event in line.events]
        zero = next(event.start_ns for _, event in events if event.name == _ZERO)
        worked = [
            (event.start_ns, event.start_ns + event.duration_ns)
            for line, event in events
            if line.startswith("tf_XLA") and event.name.startswith("ThunkExecutor::Execute")
        ]
        return joined([(self._zero + (a - zero) / 1e9, self._zero + (b - zero) / 1e9) for a, b in worked])


def joined(intervals: Sequence[Interval]) -> list[Interval]:
    """The union of intervals, in order."""
    found: list[Interval] = []
    for begin, end in sorted(intervals):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


def idle_in(busy: Sequence[Interval], begin: float, end: float) -> float:
    """Seconds between two moments without any work; ``busy`` as `joined` gives it."""
    first = max(0, bisect_left(busy, (begin, begin)) - 1)
    worked = 0.0
    for a, b in busy[first:]:
        if a >= end:
            break
        worked += max(0.0, min(b, end) - max(a, begin))
    return end - begin - worked


def compared(seen: Sequence[Seen], busy: Sequence[Interval], skip: int) -> dict[str, float | bool]:
    """Both looks at the gaps of one run: medians over its steps behind the first ``skip``, in milliseconds.

    Both count, between the middle of a step's last micro-batch and that of the next one's first, what is not busy.

    Returns:
      ``watcher_ms``, ``profiler_ms``, and ``agree``.
    """
    watched = joined([(one.start, one.end) for one in seen])
    trained: dict[int, list[Seen]] = {}
    for one in seen:
        if one.kind == "fwd_bwd":
            trained.setdefault(one.step, []).append(one)
    borders = [
        (_middle(trained[step][-1]), _middle(trained[step + 1][0]))
        for step in sorted(trained)
        if step >= skip and step + 1 in trained
    ]
    mine, theirs = (1e3 * median(idle_in(one, *border) for border in borders) for one in (watched, busy))
    return {
        "watcher_ms": mine,
        "profiler_ms": theirs,
        "agree": abs(mine - theirs) <= max(AGREE_MS, AGREE_SHARE * max(mine, theirs)),
    }


def _middle(one: Seen) -> float:
    return (one.start + one.end) / 2
