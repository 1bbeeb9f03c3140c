"""The motion ``fuse``: the parts of an op become the op again, or two ops the one that a law says they equal."""

from __future__ import annotations

from dataclasses import replace

from steptrace.check.head_law import HEAD_ATTRS
from steptrace.check.laws import LAWS, apply_law
from steptrace.check.rewrite import find, fresh, spliced, with_resources
from steptrace.diag.motion import FuseError
from steptrace.ir.builtin import BUILTIN
from steptrace.ir.program import Op, Origin, Program, ops_of
from steptrace.motion.edit import home_of
from steptrace.motion.proof import Call, in_words, rewritten
from steptrace.motion.schedule import Moved, Schedule

_JOINING = ("fused-update",)
"""Laws that make one op of two ops of the source."""


def fuse(schedule: Schedule, op: str, *, law: str) -> Moved:
    """Joins ops that a law says are one.

    ``start_metrics; fetch_metrics  -->  get_metrics``   for ``fuse(schedule, "start_metrics", law="start-fetch")``
    ``loop { attempt_fwd_bwd; settle }  -->  loop { fwd_bwd }``   for ``fuse(schedule, "settle", law="settle")``
    ``loop { fwd_bwd }; update  -->  loop { fwd_bwd {closes="update"} }``   for law ``fused-update``

    The joined op stands where the first part stood; an update joined to the last training call is done by that call.

    Refused when a part is missing or moved to another lane or step, or when an op between the parts touches what
    they touch.

    Args:
      schedule: the schedule.
      op: id of a part, or of the update.
      law: name of the law.

    Raises:
      FuseError: as above.
      LawError, UnknownLawError, UnknownOpError: the law does not hold here.
    """
    call = Call("fuse", (op,), (("law", law),))
    rule = LAWS.get(law)
    if law in _JOINING or rule is None or not rule.parts or "whole" in rule.parts:
        program, reference = apply_law(schedule.program, op, law), apply_law(schedule.reference, op, law)
        calls = tuple(other.id for other in ops_of(program.body) if other.attr("closes"))
        claim = f"`{op}` is done by the last {in_words(calls[:1])} of the step"
        return rewritten(schedule, program, reference, call, claim, class_="recompiled", forwarding={op: calls}, at=op)
    parts = _parts(schedule.program, op, law)
    whole = _whole(schedule, parts)
    program, reference = (_joined(one, parts, whole) for one in (schedule.program, schedule.reference))
    claim = f"joined {in_words(tuple(part.id for part in parts))} to `{whole.id}` again"
    forwarding = {part.id: (whole.id,) for part in parts}
    return rewritten(schedule, program, reference, call, claim, forwarding=forwarding, at=op)


def _parts(program: Program, op_id: str, law: str) -> tuple[Op, ...]:
    """The parts of the op that one of them stands for, in the order of the law."""
    one = find(program, op_id)
    assert one.origin is not None, "every op has an origin"
    names = LAWS[law].parts
    mine = [op for op in ops_of(program.body) if op.origin and op.origin.op == one.origin.op]
    family = [op for op in mine if op.micro == one.micro]
    found = {op.origin.part: op for op in family if op.origin and op.origin.part}
    if not set(names) <= found.keys():
        raise FuseError(f"`{op_id}` is no part that `{law}` made", loc=one.loc, help="give the id of one of its parts")
    parts = tuple(found[name] for name in names)
    for part in parts:
        for what in ("lane", "shift", "when"):
            mine, first = getattr(part, what), getattr(parts[0], what)
            if mine != first:
                message = f"`{part.id}` and `{parts[0].id}` differ in {what}: {mine} and {first}"
                raise FuseError(message, loc=part.loc, help=f"bring `{part.id}` back first")
        if home_of(program, part.id) != home_of(program, parts[0].id):
            raise FuseError(f"`{part.id}` does not stand beside `{parts[0].id}`", loc=part.loc)
    return parts


def _whole(schedule: Schedule, parts: tuple[Op, ...]) -> Op:
    """The source's op, where the first part stands and with the values of the parts."""
    origin = parts[0].origin
    assert origin is not None, "every op has an origin"
    plain = find(schedule.source, origin.op)
    results = next((part.results for part in parts if part.results), ())
    assert plain.kind in BUILTIN, "laws split built-in ops"
    laws = tuple(pair for pair in parts[0].attrs if pair[0] in (*HEAD_ATTRS, "closes"))
    (id,) = fresh(schedule.program, plain.id if parts[0].micro is None else f"{plain.id}.first")
    return replace(
        parts[0], id=id, kind=plain.kind, attrs=(*plain.attrs, *laws), results=results, origin=Origin(plain.id)
    )


def _joined(program: Program, parts: tuple[Op, ...], whole: Op) -> Program:
    here = find(program, parts[0].id)
    joined = spliced(program, here.id, (replace(whole, lane=here.lane, shift=here.shift),))
    for part in parts[1:]:
        joined = spliced(joined, part.id, ())
    return with_resources(joined)
