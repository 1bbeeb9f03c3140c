"""The law ``settle``: a training call is an attempt, and a settling that repeats it where tokens were dropped.

``fwd_bwd(mb)  -->  attempt_fwd_bwd(mb); settle(mb)``

A finite expert buffer may drop tokens. The trainer then runs the micro-batch again with a program that drops none, and
learns of it only when the attempt is computed. The attempt keeps its gradient sums and metrics apart
(``trainer.attempts``); the settling adds one of the two, never both, in the order of the calls. So the next attempts
need not wait for it, and the update, the metrics and all that follows them do.
"""

from __future__ import annotations

from dataclasses import replace

from steptrace.check.rewrite import fresh, mapped, spliced
from steptrace.check.units import is_stream
from steptrace.diag.schedule import LawError
from steptrace.ir.program import Loop, Op, Origin, Program, ops_of

SETTLE = "settle"
"""Name of the law, and the part that adds what counts."""

ATTEMPT = "attempt"
"""The part that runs the micro-batch with the program that may drop tokens."""

ATTEMPT_KIND, SETTLE_KIND, WHOLE_KIND = "attempt_fwd_bwd", "settle", "fwd_bwd"


def settled(program: Program, op: Op) -> Program:
    """The program with a training call, in a loop or peeled, split into attempt and settling.

    A rerun finds its micro-batch in the host memory of the step, which is then not released before; where groups are
    packed as they arrive, that memory changes from call to call, and the trainer keeps the micro-batch.

    Raises:
      LawError: the call is a part already, or does the update too.
    """
    why = help = ""
    if op.origin is not None and op.origin.part:
        why = f"it is already the part `{op.origin.part}` of `{op.origin.op}`"
        help = "split the training calls before they are shipped or sent ahead"
    elif op.attr("closes") == "update":
        why = "it does the update too, which has to wait until the call is settled"
        help = "let an op of its own do the update, or `apply_deferred_update`"
    if why:
        raise LawError(f"`{SETTLE}` cannot be applied to `{op.id}`: {why}", loc=op.loc, help=help)
    suffix = op.id.removeprefix(op.kind) if op.id.startswith(op.kind) else f".{op.id}"
    attempt_id, settle_id = fresh(program, f"{ATTEMPT_KIND}{suffix}", f"{SETTLE_KIND}{suffix}")
    source = op.origin.op if op.origin else op.id
    attempt = replace(op, id=attempt_id, kind=ATTEMPT_KIND, origin=Origin(source, ATTEMPT))
    attrs = (("from_host", True),) if _in_bulk(program, source) else ()
    settle = replace(op, id=settle_id, kind=SETTLE_KIND, attrs=attrs, origin=Origin(source, SETTLE))
    return spliced(program, op.id, (attempt, settle))


def _in_bulk(program: Program, source: str) -> bool:
    """Whether the call's micro-batches are taken from a batch that is packed as a whole."""
    loops = [node for node in program.body if isinstance(node, Loop) and is_stream(node)]
    own = [loop for loop in loops if any(op.origin and op.origin.op == source for op in ops_of(loop.body))]
    return all(loop.over is not None for loop in own)


def from_slot(program: Program, call: Op) -> Program:
    """The program in which a rerun of a call that is shipped ahead finds its micro-batch where it was shipped to."""

    def change(op: Op) -> Op:
        mine = op.origin is not None and call.origin is not None and op.origin.op == call.origin.op
        if not mine or op.kind != SETTLE_KIND or op.micro != call.micro:
            return op
        return replace(op, attrs=(*op.attrs, ("from_slot", True)))

    return mapped(program, change)
