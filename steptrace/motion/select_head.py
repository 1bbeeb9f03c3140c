"""The motion ``select_head``: the step's log-probs are made by another head."""

from __future__ import annotations

from steptrace.check.head_law import ASSUMES_HEAD, HEADED, SelectedHead, with_head
from steptrace.ir.program import ops_of
from steptrace.motion.proof import Call, in_words, rewritten
from steptrace.motion.schedule import Argument, Moved, Schedule


def select_head(
    schedule: Schedule, head: str, *, reason: str = "", bytes: int | None = None, logps_bytes: int | None = None
) -> Moved:
    """Gives every op of the step that makes log-probs the same head, with why and what it is predicted to send.

    ``fwd_bwd(mb)  -->  fwd_bwd(mb) {head="shard_map", head_bytes=800}``

    Nothing moves. Results agree within rounding only, since other programs are compiled.

    Refused when no op of the step makes log-probs, and when a head was selected already.

    Args:
      schedule: the schedule.
      head: ``shard_map``, ``dense``, or ``auto`` for what the bound parts have.
      reason: why, one sentence.
      bytes: what a device is predicted to send for it in a training call; None where that is not known.
      logps_bytes: the same for a call that makes log-probs alone.

    Raises:
      LawError: as above.
    """
    selected = SelectedHead(head, reason, bytes, logps_bytes)
    program, reference = with_head(schedule.program, selected), with_head(schedule.reference, selected)
    ids = tuple(op.id for op in ops_of(program.body) if op.kind in HEADED)
    given = {"reason": reason or None, "bytes": bytes, "logps_bytes": logps_bytes}
    options: tuple[tuple[str, Argument], ...] = tuple(
        (name, value) for name, value in given.items() if value is not None
    )
    claim = f"the head of {in_words(ids)} is {head}" + (f": {reason}" if reason else "")
    return rewritten(
        schedule,
        program,
        reference,
        Call("select_head", (head,), options),
        claim,
        class_="recompiled",
        at=next(node.id for node in schedule.program.body if any(op.id in ids for op in ops_of((node,)))),
        assumes=ASSUMES_HEAD,
    )
