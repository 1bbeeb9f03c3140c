"""The laws: an op equals its parts. One copy of each; motions and the reference rewrite by the same functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from steptrace.check.release_law import RELEASE, released
from steptrace.check.rewrite import find, fresh, mapped, spliced, with_resources
from steptrace.check.settle_law import ATTEMPT, ATTEMPT_KIND, SETTLE, from_slot, settled
from steptrace.check.stream_law import STREAM, streamed
from steptrace.check.units import conflict, is_stream, units_of
from steptrace.diag.schedule import LawError, UnknownLawError
from steptrace.ir.builtin import BUILTIN, kinds_of
from steptrace.ir.effects import effects_of
from steptrace.ir.predicate import ALWAYS, Flag, Not, conjunction
from steptrace.ir.program import Loop, Op, Origin, Program, Result, Use, ops_of
from steptrace.ir.resource import Access
from steptrace.ir.types import Type
from steptrace.ir.verify.runs import ACCUMULATOR


@dataclass(frozen=True, slots=True)
class Law:
    """A law.

    Attributes:
      name: its name.
      splits: the kind of op that it takes apart.
      parts: the parts that the ops it makes carry in their origin.
      apply: rewrites a program at an op; checks the law's conditions.
      also: other kinds that it takes apart: parts of its kind that another law made.
      recompiled: whether the trainer compiles other programs under it, so that results agree only within rounding.
    """

    name: str
    splits: str
    parts: tuple[str, ...]
    apply: Callable[[Program, Op], Program]
    recompiled: bool = False
    also: tuple[str, ...] = ()

    def takes(self, kind: str) -> bool:
        """Whether it takes ops of a kind apart."""
        return kind == self.splits or kind in self.also


def apply_law(program: Program, op_id: str, law: str) -> Program:
    """The program with a law applied in place: the parts stand where the op stood, unshifted as it was.

    Args:
      program: the program.
      op_id: the op of the step to rewrite. For `fused-update` and `deferred-update` that is the update.
      law: name of the law.

    Returns:
      The new program. New ops keep the op's lane, condition and line.

    Raises:
      UnknownLawError: no such law, or not for this kind of op.
      UnknownOpError: the step has no such op.
      LawError: a condition of the law does not hold.
    """
    op = find(program, op_id)
    rule = LAWS.get(law)
    if rule is None or not rule.takes(op.kind):
        known = ", ".join(f"`{name}`" for name, other in LAWS.items() if other.takes(op.kind))
        help = f"its laws: {known}" if known else f"no law splits a `{op.kind}`"
        raise UnknownLawError(f"`{law}` is no law for `{op.kind}`", loc=op.loc, help=help)
    return with_resources(rule.apply(program, op))


def _refuse(op: Op, law: str, why: str, help: str = "") -> LawError:
    return LawError(f"`{law}` cannot be applied to `{op.id}`: {why}", loc=op.loc, help=help)


def _check_top(program: Program, op: Op, law: str) -> None:
    """A law applies to an op that stands directly in the step."""
    if op not in program.body:
        raise _refuse(op, law, "it stands in a loop", "a law applies to ops that stand directly in the step")


def _check_whole(op: Op, law: str, *besides: str) -> None:
    if op.origin is not None and op.origin.part and op.origin.part not in besides:
        raise _refuse(op, law, f"it is already the part `{op.origin.part}` of `{op.origin.op}`")


def _split(law: str, kinds: tuple[str, ...], gives: str, parts: tuple[str, ...]) -> Callable[[Program, Op], Program]:
    """A law that replaces an op by parts that follow one another; ``gives`` is the kind that makes its results."""

    def apply(program: Program, op: Op) -> Program:
        _check_top(program, op, law)
        _check_whole(op, law)
        ids = fresh(program, *kinds)
        source = op.origin.op if op.origin else op.id
        made = [
            replace(op, id=id, kind=kind, results=op.results if kind == gives else (), origin=Origin(source, part))
            for id, kind, part in zip(ids, kinds, parts, strict=True)
        ]
        return spliced(program, op.id, tuple(made))

    return apply


def _stage(program: Program, op: Op) -> Program:
    """``fwd_bwd`` of a peeled micro-batch: ship it, then run what was shipped, or the whole where nothing was."""
    _check_top(program, op, "stage")
    _check_whole(op, "stage", ATTEMPT)
    if op.micro is None:
        raise _refuse(op, "stage", "only the call on a peeled micro-batch can be sent ahead", "peel its loop first")
    source = op.origin.op if op.origin else op.id
    kind = "attempt_staged" if op.kind == ATTEMPT_KIND else "fwd_bwd_staged"
    stage_id, staged_id = fresh(program, "stage_fwd_bwd", f"{kind}{_suffix(op)}")
    token, flag = fresh(program, "request", "staged", values=True)
    results = (Result(token, Type("token")), Result(flag, Type("flag")))
    stage = replace(op, id=stage_id, kind="stage_fwd_bwd", attrs=(), results=results, origin=Origin(source, "stage"))
    staged = replace(
        op,
        id=staged_id,
        kind=kind,
        args=(Use(token),),
        when=conjunction(op.when, Flag(flag)),
        origin=Origin(source, "staged"),
    )
    whole = replace(op, when=conjunction(op.when, Not(Flag(flag))), origin=Origin(source, "whole"))
    return from_slot(spliced(program, op.id, (stage, staged, whole)), op)


def _suffix(op: Op) -> str:
    """What tells an op from others of its kind, for the ids of its parts."""
    return op.id.removeprefix(op.kind) if op.id.startswith(op.kind) else f".{op.id}"


def _poll(program: Program, op: Op) -> Program:
    """``fwd_bwd`` of a peeled micro-batch: run it early if it is packed by then, else in its place.

    Also what the law `stage` leaves for a micro-batch that was not shipped.
    """
    _check_top(program, op, "poll")
    _check_whole(op, "poll", ATTEMPT, "whole")
    if op.micro is None:
        raise _refuse(op, "poll", "only the call on a peeled micro-batch can be sent ahead", "peel its loop first")
    source = op.origin.op if op.origin else op.id
    poll_id, early_id = fresh(program, f"poll_packed{_suffix(op)}", f"{op.id}.early")
    (flag,) = fresh(program, "packed", values=True)
    results = (Result(flag, Type("flag")),)
    poll = replace(op, id=poll_id, kind="poll_packed", attrs=(), results=results, origin=Origin(source, "poll"))
    early = replace(op, id=early_id, when=conjunction(op.when, Flag(flag)), origin=Origin(source, "early"))
    late = replace(op, when=conjunction(op.when, Not(Flag(flag))), origin=Origin(source, "late"))
    return spliced(program, op.id, (poll, early, late))


def _defer(program: Program, op: Op) -> Program:
    """The last training call holds the update back; an op in the update's place applies it."""
    _check_closing(program, op, "deferred-update")
    (id,) = fresh(program, "apply_deferred_update")
    source = op.origin.op if op.origin else op.id
    held = replace(op, id=id, kind="apply_deferred_update", origin=Origin(source))
    return _closing(spliced(program, op.id, (held,)), "defer")


def _fuse(program: Program, op: Op) -> Program:
    """The last training call does the update too."""
    last = _check_closing(program, op, "fused-update")
    late = next((call for call in ops_of(program.body) if call.kind in _ATTEMPTS), None)
    if late is not None:
        raise _refuse(op, "fused-update", f"`{late.id}` is settled later, and the update has to wait for that")
    _check_nothing_between(program, last, op)
    return _closing(spliced(program, op.id, ()), "update")


def _check_closing(program: Program, op: Op, law: str) -> Loop:
    """The update stands directly in the step, alone, after the one loop of training calls; returns that loop."""
    _check_top(program, op, law)
    _check_whole(op, law)
    if op.when != ALWAYS or op.shift:
        raise _refuse(op, law, "it runs under a condition, or ahead of its place")
    updates = [other for other in ops_of(program.body) if _applies(program, other)]
    if updates != [op]:
        raise _refuse(op, law, "the step has another update", "each training call closes at most one update")
    loops = [
        node
        for node in program.body
        if isinstance(node, Loop) and any(inner.kind in _CALLS for inner in ops_of(node.body))
    ]
    calls = [call for call in ops_of(program.body) if call.kind in _CALLS]
    if len(loops) != 1 or not is_stream(loops[0]) or program.body.index(loops[0]) > program.body.index(op):
        raise _refuse(op, law, "it does not follow one loop of training calls")
    if any(call.attr("closes") for call in calls):
        raise _refuse(op, law, "the last training call closes the step already")
    inside = [call for call in ops_of(loops[0].body) if call.kind in _CALLS]
    if len(inside) != 1 or inside[0].when != ALWAYS:
        raise _refuse(op, law, "the loop has several training calls, or one under a condition")
    return loops[0]


def _check_nothing_between(program: Program, loop: Loop, op: Op) -> None:
    """No op between the last training call and the update conflicts with the update."""
    units = units_of(program)
    kinds = kinds_of(program)
    mine = effects_of(op, kinds[op.kind], program.contract)
    call = next(units[inner.id] for inner in ops_of(loop.body) if inner.kind in _CALLS)
    for unit in units:
        if call.index < unit.index < units[op.id].index and conflict(unit.effects, mine):
            why = f"`{unit.id}` stands between the last training call and it, and the two touch the same state"
            raise _refuse(op, "fused-update", why, f"move `{unit.id}` out of the way")


_CALLS = ("fwd_bwd", "fwd_bwd_staged", ATTEMPT_KIND, "attempt_staged")
_ATTEMPTS = _CALLS[2:]


def _applies(program: Program, op: Op) -> bool:
    """Whether an op applies the gradients: writes the parameters and clears the accumulator."""
    effects = effects_of(op, kinds_of(program)[op.kind], program.contract)
    writes = {effect.resource for effect in effects if effect.access is Access.WRITE}
    return "params" in writes and bool(ACCUMULATOR & writes)


def _closing(program: Program, how: str) -> Program:
    """Every training call of the step with what it does on the step's last micro-batch."""

    def close(op: Op) -> Op:
        return replace(op, attrs=(*op.attrs, ("closes", how))) if op.kind in _CALLS else op

    return mapped(program, close)


_SYNC = ("copy_weights", "transfer_weights", "apply_weights")

LAWS: Mapping[str, Law] = MappingProxyType(
    {
        law.name: law
        for law in (
            Law("fused-update", "update", (), _fuse, recompiled=True),
            Law("deferred-update", "update", (), _defer),
            Law("stage", "fwd_bwd", ("stage", "staged", "whole"), _stage, also=(ATTEMPT_KIND,)),
            Law("poll", "fwd_bwd", ("poll", "early", "late"), _poll, also=(ATTEMPT_KIND,)),
            Law(SETTLE, "fwd_bwd", (ATTEMPT, SETTLE), settled),
            Law(STREAM, "next_mb", (STREAM,), streamed),
            Law(RELEASE, "next_mb", (RELEASE,), released, also=("stream_mb",)),
            Law(
                "start-fetch",
                "get_metrics",
                ("start", "fetch"),
                _split("start-fetch", ("start_metrics", "fetch_metrics"), "fetch_metrics", ("start", "fetch")),
            ),
            Law(
                "snapshot-write",
                "save_checkpoint",
                ("snapshot", "write"),
                _split("snapshot-write", ("snapshot_checkpoint", "write_checkpoint"), "", ("snapshot", "write")),
            ),
            Law(
                "copy-transfer-apply",
                "sync_weights",
                ("copy", "transfer", "apply"),
                _split("copy-transfer-apply", _SYNC, "copy_weights", ("copy", "transfer", "apply")),
            ),
        )
    }
)
"""The laws by name."""

assert all(law.splits in BUILTIN for law in LAWS.values()), "laws split built-in ops"


def law_of_part(part: str) -> str:
    """The law that makes a part; ``""`` when none does."""
    return next((law.name for law in LAWS.values() if part in law.parts), "")
