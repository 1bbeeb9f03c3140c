"""When the devices of a run worked: threads that wait for each result in the order in which its work was sent."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from steptrace.ir import Op
from steptrace.simulate import Span


@dataclass(frozen=True, slots=True)
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
    """

    op: Op
    step: int
    micro: int | None
    what: str
    called: float
    returned: float
    token: Any
    done: float | None = None


class Watcher:
    """Watches one device, by a thread of its own.

    A device does its work in the order in which it was sent. So a work begins when it was sent and what came before it
    was done, whichever came last, and ends when its result is there. A call that only sends work off sends it as it
    returns; one whose work was done by then counts from its beginning.

    Args:
      device: its name.
      limit: how much work is kept, the newest.
    """

    def __init__(self, device: str, limit: int) -> None:
        self.device = device
        self.seen: deque[Span] = deque(maxlen=limit)
        self.dropped = 0
        self._sent: queue.SimpleQueue[Sent | float | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._watch, name=f"steptrace-watch-{device}", daemon=True)
        self._thread.start()

    def sent(self, work: Sent) -> None:
        """Note that work was sent; costs the caller about a microsecond."""
        self._sent.put(work)

    def done_by(self, moment: float) -> None:
        """Note that all that was sent up to now was done at a moment, however late its results are seen."""
        self._sent.put(moment)

    def close(self) -> None:
        """Wait for all that was sent."""
        self._sent.put(None)
        self._thread.join()

    def _watch(self) -> None:
        before = 0.0
        while (work := self._sent.get()) is not None:
            if isinstance(work, float):
                before = self._known_by(work) if before > work else before
                continue
            end = work.done
            if end is None:
                with suppress(RuntimeError):  # what was given away, or has failed, is done
                    work.token.block_until_ready()
                end = time.perf_counter()
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

    def _known_by(self, end: float) -> float:
        """All that came before what was done by then was done too, however late this thread has seen it."""
        for place in range(len(self.seen) - 1, -1, -1):
            span = self.seen[place]
            if span.end <= end:
                break
            self.seen[place] = replace(span, issued=min(span.issued, end), start=min(span.start, end), end=end)
        return end
