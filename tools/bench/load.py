"""How busy the machine was with other work while something was measured."""

from __future__ import annotations

import os
import time
from pathlib import Path

_STAT = Path("/proc/stat")


class ForeignLoad:
    """Measures, from its making on, the share of the machine's processors that other processes took."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._busy = _busy_seconds()
        self._own = _own_seconds()

    def share(self) -> float | None:
        """Share in 0..1 so far; None where the system does not tell. Ended child processes count as own."""
        busy = _busy_seconds()
        if busy is None or self._busy is None:
            return None
        wall = max(time.perf_counter() - self._start, 1e-9) * (os.cpu_count() or 1)
        foreign = (busy - self._busy) - (_own_seconds() - self._own)
        return min(1.0, max(0.0, foreign / wall))


QUIET = 0.05
"""A machine is quiet whose processors other processes take less than this share of."""


def wait_until_quiet(limit_s: float, *, look_s: float = 1.0) -> float | None:
    """Wait, at most so many seconds, until other processes leave the machine alone; gives the share they took last."""
    end = time.perf_counter() + limit_s
    while True:
        load = ForeignLoad()
        time.sleep(min(look_s, max(0.05, limit_s)))
        share = load.share()
        if share is None or share <= QUIET or time.perf_counter() >= end:
            return share


def shown(share: float | None) -> str:
    """The share in words."""
    return "unknown" if share is None else f"{share:.0%}"


def _busy_seconds() -> float | None:
    """Seconds in which the processors were not idle, summed over them."""
    if not _STAT.exists():
        return None
    user, nice, system, _, _, irq, softirq, *_ = (int(ticks) for ticks in _STAT.read_text().split()[1:9])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
