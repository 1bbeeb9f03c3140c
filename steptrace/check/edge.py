"""An edge: one instance must come before another, with the reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from steptrace.check.edge_kind import EdgeKind as EdgeKind

Event = Literal["issue", "done"]
"""The two events of an instance: its call is made, its work is finished."""


@dataclass(frozen=True, slots=True)
class Edge:
    """``before`` of step k comes before ``after`` of step ``k + distance``.

    Between two ops of one loop over micro-batches an edge with distance 0 counts micro-batches too: ``before``
    of micro-batch m comes before ``after`` of micro-batch ``m + micro`` of the same step. Every other edge at an op
    inside such a loop speaks of all its micro-batches of the step.

    Attributes:
      before: id of the op, or of a loop over mini-batches or epochs, that comes first.
      after: id of the one that comes later.
      distance: steps from one to the other, 0 or more.
      micro: micro-batches from one to the other, or None.
      kind: why.
      what: the resource (``params``, ``rollout.weights[k-1]`` as ``after`` sees it) or value (``%groups``).
      from_event: what must have happened to ``before``: a call that waits for its work is over when it returns,
        so its edges start at ``done``; one that only sends work off orders later calls when it is issued.
      persists: whether it also orders every later step (and micro-batch), because the resource is one thing; a
        value and a cell of a step order only what uses them.
      note: for the reason: the staleness behind an index, the capacity, or who declares no effects.
    """

    before: str
    after: str
    distance: int
    micro: int | None
    kind: EdgeKind
    what: str
    from_event: Event = "done"
    persists: bool = False
    note: str = ""

    @property
    def to_event(self) -> Event:
        """What must not have happened to ``after`` yet: its issue."""
        return "issue"

    @property
    def reason(self) -> str:
        """One sentence that says why, in the words of a train step."""
        from steptrace.check.reasons import reason_of  # the words are needed only when an edge is shown

        return reason_of(self)

    def __str__(self) -> str:
        ends = f"{self.before} -> {self.after}"
        count = f"{self.distance}" if self.micro is None else f"{self.distance}, {self.micro}"
        return f"{ends} ({count}) {self.kind.value} {self.what}"
