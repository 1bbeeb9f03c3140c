"""How often a step may dispatch and take: what one queue with one batch of groups for each step can do."""

from __future__ import annotations

from itertools import combinations

from steptrace.diag import Note
from steptrace.diag.binding import NotLowerableError
from steptrace.ir import Op, flags_of, walk
from steptrace.ir.verify.conditions import exclusive
from steptrace.lower.plan import Plan

_DRAWS = ("dispatch",)
_TAKES = ("take", "stream_mb")


def check_takes(plan: Plan) -> None:
    """Refuse a step that would dispatch or take twice, or whose number of prompts is known too late.

    Raises:
      NotLowerableError: points at the op.
    """
    name = plan.target.name
    for kinds in (_DRAWS, _TAKES):
        found = [(op, loops) for op, loops in walk(plan.program.body) if op.kind in kinds]
        for op, loops in found:
            if len(loops) > (op.kind == "stream_mb"):
                raise NotLowerableError(
                    f"`{op.id}` stands in loop `{loops[0].id}`, and `{name}` draws and takes a step's groups once",
                    loc=op.loc,
                    help="put it in front of the loop",
                )
        for (one, _), (other, _) in combinations(found, 2):
            if not exclusive(one.when, other.when):
                raise NotLowerableError(
                    f"`{other.id}` runs in steps in which `{one.id}` does, and `{name}` has one batch of groups a step",
                    loc=other.loc,
                    notes=(Note(f"`{one.id}` runs here", one.loc),),
                    help="dispatch all prompts of the step at once",
                )
        for op, _ in found:
            _check_known(op, plan)


def _check_known(op: Op, plan: Plan) -> None:
    """A partial step is dropped or refused before it begins, so what it draws must be known by then."""
    partial = plan.program.contract.partial
    if op.attr("keep") and op.attr("extra") is not None:
        raise NotLowerableError(
            f"`{op.id}` keeps groups until it has enough, in waves of what is missing, so `extra` draws nothing more",
            loc=op.loc,
            help="leave out `extra`, or `keep`: no group that could be trained is then given up",
        )
    late = f"runs when `{op.when}`" if flags_of(op.when) else "draws until enough groups can be trained"
    if op.kind in _DRAWS and partial != "train" and (flags_of(op.when) or op.attr("keep")):
        raise NotLowerableError(
            f'`{op.id}` {late}, so whether a step is partial is known when it has begun, and partial is "{partial}"',
            loc=op.loc,
            help='declare partial="train", or dispatch under conditions on the step alone',
        )
