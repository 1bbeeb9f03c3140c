"""The law ``logps-head``: a step equals itself with another log-prob head, within rounding.

``ref_logps(mb); fwd_bwd(mb)  -->  ref_logps(mb) {head=...}; fwd_bwd(mb) {head=...}``

A head makes log-probs of hidden states and a table. All heads are exact, and they round differently, since other
programs are compiled. One is selected for the whole step: the ratios and penalties of its losses compare log-probs of
one op with those of another. What an op is split or copied into keeps its head.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from steptrace.check.rewrite import mapped
from steptrace.diag.schedule import LawError
from steptrace.ir.builtin import BUILTIN
from steptrace.ir.program import Op, Program, ops_of
from steptrace.ir.schedule_ops import HEAD
from steptrace.ir.types import AttrValue

HEAD_LAW = "logps-head"
"""Name of the law."""

HEAD_ATTRS = tuple(attr.name for attr in HEAD)
"""The attributes that it gives."""

HEADED = tuple(row.name for row in BUILTIN.values() if HEAD_LAW in row.laws)
"""The kinds of ops that it gives them to."""

_LOGPS_ONLY = ("ref_logps", "old_logps")

ASSUMES_HEAD = "log-probs under the head that was selected are those of the other heads, within rounding"
"""What the law takes for granted about the parts that are bound to a program."""


@dataclass(frozen=True, slots=True)
class SelectedHead:
    """A head for a step.

    Attributes:
      head: which, one of the choices of the attribute ``head``.
      reason: why, one sentence; "" for none.
      bytes: what a device is predicted to send for it in a training call; None where that is not known.
      logps_bytes: the same for a call that makes log-probs alone.
    """

    head: str
    reason: str = ""
    bytes: int | None = None
    logps_bytes: int | None = None

    def attrs(self, kind: str) -> tuple[tuple[str, AttrValue], ...]:
        """The attributes of an op of this kind, in the order of its row."""
        sent = self.logps_bytes if kind in _LOGPS_ONLY else self.bytes
        given = zip(HEAD_ATTRS, (self.head, sent, self.reason or None), strict=True)
        return tuple((name, value) for name, value in given if value is not None)


def with_head(program: Program, selected: SelectedHead) -> Program:
    """The program with a head for every op of its step that makes log-probs.

    Raises:
      LawError: no op does, or a head was selected already.
    """
    ops = [op for op in ops_of(program.body) if op.kind in HEADED]
    if not ops:
        message = f"`{HEAD_LAW}` cannot be applied to `{program.name}`: no op of its step makes log-probs"
        raise LawError(message, loc=program.loc)
    done = next((op for op in ops if op.attr("head") is not None), None)
    if done is not None:
        message = f"`{HEAD_LAW}` cannot be applied to `{done.id}`: its head was selected already, {done.attr('head')}"
        raise LawError(message, loc=done.loc, help="select one head, once")

    def give(op: Op) -> Op:
        return replace(op, attrs=(*selected.attrs(op.kind), *op.attrs)) if op.kind in HEADED else op

    return mapped(program, give)


def head_of(program: Program) -> SelectedHead | None:
    """The head that was selected for a step, as the first ops that say so have it; None where none was."""
    ops = [op for op in ops_of(program.body) if op.kind in HEADED and op.attr("head") is not None]
    if not ops:
        return None
    training, logps = (
        next((op.attr("head_bytes") for op in ops if (op.kind in _LOGPS_ONLY) is alone), None)
        for alone in (False, True)
    )
    return SelectedHead(
        str(ops[0].attr("head")), str(ops[0].attr("head_reason") or ""), _whole(training), _whole(logps)
    )


def _whole(value: AttrValue | None) -> int | None:
    return value if isinstance(value, int) else None
