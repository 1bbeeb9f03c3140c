"""When the devices of a run worked: threads that wait for each result in the order in which its work was sent."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from steptrace.ir import Op
from steptrace.simulate import Span


@dataclass(slots=True)
class Sent:
    """Work that was sent to a device.

    Attributes:
      op: the op that sent it.
      step: its step.
      micro: its micro-batch, None outside loops over them.
      what: "" for the op's own work; what else the call sent.
      called: when the call began, in seconds of the process.
      returned: when it had sent the work.
      token: what is ready once the work is done: it has ``block_until_ready()``.
      done: when the work was done, where that is known already; None where the token is to be waited for.
      by: a moment at which it was found done, in seconds: a thread that waits may see it later than that.
    """

    op: Op
    step: int
    micro: int | None
    what: str
    called: float
    returned: float
    token: Any
    done: float | None = None
    by: float = math.inf


class Watcher:
    """Watches one device, by a thread of its own.

    A device does its work in the order in which it was sent. So a work begins when it was sent and what came before it
    was done, whichever came last, and ends when its result is there. A call that only sends work off sends it as it
    returns; one whose work was done by then counts from its beginning.

    Args:
      device: its name.
      limit: how much work is kept, the newest.

    Attributes:
      seen: what it did.
      dropped: how much of that was not kept.
      cpu_s: processor time that watching has taken, in seconds, once it is closed.
    """

    def __init__(self, device: str, limit: int) -> None:
        self.device = device
        self.seen: deque[Span] = deque(maxlen=limit)
        self.dropped = 0
        self.cpu_s = 0.0
        self._sent: queue.SimpleQueue[Sent | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._watch, name=f"steptrace-watch-{device}", daemon=True)
        self._thread.start()

    def sent(self, work: Sent) -> None:
        """Note that work was sent; costs the caller about a microsecond."""
        self._sent.put(work)

    def close(self) -> None:
        """Wait for all that was sent."""
        self._sent.put(None)
        self._thread.join()

    def _watch(self) -> None:
        before = 0.0
        while (work := self._sent.get()) is not None:
            end = work.done
            if end is None:
                with suppress(Exception):  # what was given away, or has failed, is done
                    work.token.block_until_ready()
                end = min(time.perf_counter(), work.by)
            before = min(before, self._known_by(end))
            start = min(max(before, work.called if end <= work.returned else work.returned), end)
            self.dropped += len(self.seen) == self.seen.maxlen
            self.seen.append(
                Span(
                    self.device,
                    work.op.id,
                    work.op.kind,
                    work.step,
                    work.micro,
                    min(work.returned, end),
                    start,
                    end,
                    work.what,
                )
            )
            before = end
        self.cpu_s = time.thread_time()

    def _known_by(self, end: float) -> float:
        """All that came before what was done by then was done too, however late this thread has seen it."""
        for place in range(len(self.seen) - 1, -1, -1):
            span = self.seen[place]
            if span.end <= end:
                break
            self.seen[place] = replace(span, issued=min(span.issued, end), start=min(span.start, end), end=end)
        return end
