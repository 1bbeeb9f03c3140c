"""When the devices of a run worked: threads that wait for each result in the order in which its work was sent."""

from __future__ import annotations

import inspect
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

from steptrace.simulate import Span

CALL, UPDATE = "last_call_token", "last_update_token"
"""Where a trainer offers what is ready once its last training call, and its last update, is done."""

_NOTHING = object()
_MOMENT_S = 1.0
LONGEST_S = 60.0
"""Seconds that work is waited for which was sent, once a run is over."""


class Named(Protocol):
    """An op, as far as watching goes."""

    @property
    def id(self) -> str:
        """Its id."""
        ...

    @property
    def kind(self) -> str:
        """Its kind."""
        ...


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
      seen: when a thread that waits has seen it done.
    """

    op: Named
    step: int
    micro: int | None
    what: str
    called: float
    returned: float
    token: Any
    done: float | None = None
    by: float = math.inf
    seen: float = math.inf


class Watcher:
    """Watches one device, by a thread of its own.

    A device does its work in the order in which it was sent. So a work begins when it was sent and what came before it
    was done, whichever came last, and ends when its result is there. A call that only sends work off sends it as it
    returns; one whose work was done by then counts from its beginning.

    Args:
      device: its name.
      limit: how much work is kept, the newest.

    Attributes:
      count: how much work it did.
      unseen: how much of the work that was sent was not done in time, once it is closed.
      cpu_s: processor time that watching has taken, in seconds, once it is closed.
    """

    def __init__(self, device: str, limit: int) -> None:
        self.device, self.count, self.unseen, self.cpu_s = device, 0, 0, 0.0
        self._limit = limit
        self._seen: deque[Sent] = deque(maxlen=limit)
        self._sent: queue.SimpleQueue[Sent | None] = queue.SimpleQueue()
        self._stopped = False
        self._thread = threading.Thread(target=self._watch, name=f"steptrace-watch-{device}", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """How much work was not kept, or not seen."""
        return max(0, self.count - self._limit) + self.unseen

    def sent(self, work: Sent) -> None:
        """Note that work was sent; costs the caller about a microsecond."""
        self._sent.put(work)

    def close(self, wait_s: float = LONGEST_S) -> tuple[Span, ...]:
        """Wait for all that was sent, unless it was stopped, and not for ever; gives what the device did, in order."""
        self._end(wait_s)
        return tuple(_spans(self.device, list(self._seen)))

    def stop(self) -> None:
        """Watch no more: behind a failure nobody knows whether what was sent will ever be done.

        What is done by now is seen; the thread ends with the work that it waits for.
        """
        self._end(_MOMENT_S)

    def _end(self, wait_s: float) -> None:
        if self._stopped:
            return
        self._sent.put(None)
        self._thread.join(wait_s)
        if self._thread.is_alive():
            self.unseen = self._sent.qsize()  # one is waited for, and one in there is the end
        self._stopped = True

    def _watch(self) -> None:
        """As little as can be: it runs beside the step, and what it takes the step may miss."""
        get, note, clock = self._sent.get, self._seen.append, time.perf_counter
        gone = suppress(Exception)  # what was given away, or has failed, is done
        while (work := get()) is not None and not self._stopped:
            if work.done is None:
                with gone:
                    work.token.block_until_ready()
                work.seen = clock()
            work.token = None
            note(work)
            self.count += 1
        self.cpu_s = time.thread_time()


class Tokens:
    """What a trainer offers to wait for, and what of it a call has put in place of what was there before.

    Args:
      trainer: the trainer, in this process.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._last = {name: getattr(trainer, name) for name in (CALL, UPDATE) if _offers(trainer, name)}

    @property
    def update(self) -> Any:
        """What the last update has left; None for nothing."""
        return self._last.get(UPDATE)

    def new(self, kind: str) -> list[tuple[str, Any]]:
        """What the last call of an op of this kind has put there: "" and its own work, or "update" and that of one."""
        found, last = [], self._last
        for name in last:
            token = getattr(self._trainer, name)
            if token is not None and token is not last[name]:
                last[name] = token
                found.append(("" if name == CALL or "update" in kind else "update", token))
        return found


def _offers(trainer: Any, name: str) -> bool:
    """Whether a trainer has an attribute of its own: to ask one in another process each time would change the run."""
    return inspect.getattr_static(trainer, name, _NOTHING) is not _NOTHING


def done_by(token: Any, end: float) -> float | None:
    """When work was done, as far as that is known when its call has returned: within the call, or to be waited for."""
    if token is None:
        return time.perf_counter()
    return end if hasattr(token, "is_ready") and is_ready(token) else None


def is_ready(token: Any) -> bool:
    """Whether the work is done; what was given away is, and so is what a thread that waits has let go of."""
    try:
        return token is None or bool(token.is_ready())
    except RuntimeError:
        return True


def _spans(device: str, seen: Iterable[Sent]) -> list[Span]:
    """The work of a device, one after the other."""
    found: list[Span] = []
    for work in seen:
        end = min(work.seen, work.by) if work.done is None else work.done
        for place in range(len(found) - 1, -1, -1):  # what came before was done by then too, however late it was seen
            span = found[place]
            if span.end <= end:
                break
            found[place] = replace(span, issued=min(span.issued, end), start=min(span.start, end), end=end)
        sent = work.called if end <= work.returned else work.returned
        start = min(max(found[-1].end if found else sent, sent), end)
        op, issued = work.op, min(work.returned, end)
        found.append(Span(device, op.id, op.kind, work.step, work.micro, issued, start, end, work.what))
    return found
