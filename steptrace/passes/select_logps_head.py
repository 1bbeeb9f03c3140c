"""The pass ``select-logps-head``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from steptrace.diag.motion import PassOptionError
from steptrace.ir.schedule_ops import HEAD
from steptrace.motion import Schedule, select_head

HEADS = tuple(str(choice) for choice in HEAD[0].choices)
"""The heads that can be selected."""

UNKNOWN = -1
"""Bytes that nobody has predicted."""

UNDECIDED = "taken as the parts have it; the main job decides by model and mesh"
"""The reason of the head ``auto``."""


@dataclass(frozen=True)
class SelectLogpsHead:
    """Says which head makes the step's log-probs, why, and how many bytes it sends: all in the schedule's text.

    Saves the array of all logits of a micro-batch, and on a mesh most of the bytes that the compiler sends for it.
    ``shard_map`` takes a chunk of tokens at a time and sends the fewest bytes; ``dense`` makes all logits; ``auto``
    leaves it open, and the main job fills it in from the plan of the kernel for its model and mesh. Results agree
    within rounding.

    Options: ``bytes`` that a device is predicted to send in a training call, ``logps_bytes`` in one that makes
    log-probs alone (-1 where they are not known), and the ``reason``, a sentence in double quotes. Nothing moves, so
    the pass may stand anywhere in a pipeline.

    Holds a tile of logits instead of all of them.

    Declines when no op of the step makes log-probs, and when a head was selected before.
    """

    name: ClassVar[str] = "select-logps-head"
    head: str = "auto"
    bytes: int = UNKNOWN
    logps_bytes: int = UNKNOWN
    reason: str = ""

    def __post_init__(self) -> None:
        if self.head not in HEADS:
            raise PassOptionError(f"`head` of `{self.name}` is one of {', '.join(HEADS)}, not `{self.head}`")
        for name, value in (("bytes", self.bytes), ("logps_bytes", self.logps_bytes)):
            if value < UNKNOWN:
                raise PassOptionError(f"`{name}` of `{self.name}` counts bytes, and -1 says that nobody knows")
        if set(self.reason) & set("\"'\\\n"):
            raise PassOptionError(f"`reason` of `{self.name}` is one line without quotation marks and backslashes")

    def run(self, schedule: Schedule) -> Schedule:
        """See the class."""
        reason = self.reason or (UNDECIDED if self.head == "auto" else "asked for")
        sent = (None if value == UNKNOWN else value for value in (self.bytes, self.logps_bytes))
        training, logps = sent
        return select_head(schedule, self.head, reason=reason, bytes=training, logps_bytes=logps).schedule
