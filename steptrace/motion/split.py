"""The motion ``split``: an op becomes the parts that a law says it equals."""

from __future__ import annotations

from collections.abc import Mapping

from steptrace.check.laws import LAWS, apply_law
from steptrace.ir.program import Program
from steptrace.motion.proof import Call, in_words, rewritten
from steptrace.motion.schedule import MotionClass, Moved, Schedule


def split(schedule: Schedule, op: str, *, law: str) -> Moved:
    """Replaces an op by parts that do the same together, in its place, so that they can be moved apart.

    ``get_metrics  -->  start_metrics; fetch_metrics``   for ``split(schedule, "get_metrics", law="start-fetch")``

    The laws, and what they make: ``start-fetch`` (above), ``snapshot-write`` (of ``save_checkpoint``),
    ``copy-transfer-apply`` (of ``sync_weights``), ``stage`` (of the ``fwd_bwd`` of a peeled micro-batch: ship it, run
    what was shipped, or the whole where nothing was), ``deferred-update`` (of ``update``: the last training call holds
    it back, ``apply_deferred_update`` applies it), ``settle`` (of a ``fwd_bwd``, also in its loop: an attempt that may
    drop tokens, and what repeats it if it did and adds what counts), ``release`` (of what hands out micro-batches:
    each takes a buffer, and an op behind its last reader gives it back).

    Refused when the op has no such law, is a part already, or a condition of the law does not hold.

    Args:
      schedule: the schedule.
      op: id of the op.
      law: name of the law.

    Raises:
      LawError, UnknownLawError, UnknownOpError: as above.
    """
    program, reference = apply_law(schedule.program, op, law), apply_law(schedule.reference, op, law)
    became = parts_of(schedule.program, program, op)
    claim = f"split `{op}` into {in_words(became)}" if len(became) > 1 else f"`{op}` is now {in_words(became)}"
    class_: MotionClass = "recompiled" if LAWS[law].recompiled else "order"
    call = Call("split", (op,), (("law", law),))
    return rewritten(schedule, program, reference, call, claim, class_=class_, forwarding={op: became}, at=op)


def parts_of(before: Program, after: Program, op: str) -> tuple[str, ...]:
    """The ids of the ops that an op became: itself if it is still there, and the new ones, in order."""
    known: Mapping[str, None] = dict.fromkeys(node.id for node in before.ops() if node.id != op)
    return tuple(node.id for node in after.ops() if node.id not in known)
