"""What goes between a run and a part in another process beside plain values and arrays.

Arrays come out as host arrays on the other side: a device belongs to one process. What only the part's own process can
hold, a staged micro-batch or a copy of its state, stays there under a number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Caller(NamedTuple):
    """The instance of an op that makes a call: the op's id and kind, step and micro-batch."""

    id: str
    kind: str
    step: int
    micro: int | None


@dataclass(frozen=True, slots=True)
class How:
    """How a call is made.

    Attributes:
      keep: the number under which the result stays in the part's process; 0 for one that is sent back.
      loose: whether nobody waits for the call: behind one that fails, the part is not called any more.
      read: the words under which something is read in the result, which alone are sent back; None for all of it.
      watched: the instance that makes it, where the part's process watches its device.
    """

    keep: int = 0
    loose: bool = False
    read: tuple[str, ...] | None = None
    watched: Caller | None = None


@dataclass(frozen=True, slots=True)
class Kept:
    """A value that has stayed in the part's process.

    Attributes:
      number: its number there.
      device_wait_s: of a staged micro-batch, how long the trainer says that it has waited for the device, in seconds.
      update_ready: whether it says that the update before is confirmed.
    """

    number: int
    device_wait_s: float | None = None
    update_ready: bool | None = None
