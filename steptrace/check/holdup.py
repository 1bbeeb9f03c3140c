"""Hold-ups: an op that may have to wait for data of a later step stands in front of work of an earlier one."""

from __future__ import annotations

from collections.abc import Iterator

from steptrace.check.places import Place, lanes_of
from steptrace.check.reasons import instance
from steptrace.diag.base import Note
from steptrace.diag.schedule import HoldUpError
from steptrace.ir.builtin import kinds_of
from steptrace.ir.predicate import And, Flag
from steptrace.ir.program import Op, Program, ops_of


def hold_ups(program: Program) -> Iterator[HoldUpError]:
    """Each op that waits for data of a later step, by itself or for a value made of it, in front of earlier work.

    An op that polls waits for nothing, and neither does one that runs only if a poll found its operand there.
    """
    ops = {op.id: op for op in ops_of(program.body)}
    if not any(op.shift for op in ops.values()):
        return
    waiting = _waiting(program, ops)
    for lane, run in lanes_of(program).items():
        for at, place in enumerate(run):
            if place.step_shift < 1 or place.id not in waiting:
                continue
            behind = _earlier_work(run, at)
            if behind is not None:
                yield _hold_up(ops[place.id], place, waiting[place.id], behind, lane, ops.get(behind.id))


def _waiting(program: Program, ops: dict[str, Op]) -> dict[str, str]:
    """The ops that wait for data, each with the op that does so in the first place."""
    kinds = kinds_of(program)
    polled = {
        result.name: {use.name for use in op.args}
        for op in ops.values()
        if kinds[op.kind].polls
        for result in op.results
    }
    users: dict[str, list[Op]] = {}
    for op in ops.values():
        if not kinds[op.kind].polls:
            there = set().union(*(polled.get(flag, set()) for flag in _needed(op)))
            for use in op.args:
                if not use.step and use.name not in there:
                    users.setdefault(use.name, []).append(op)
    waiting: dict[str, str] = {}
    pending = [(op, op.id) for op in ops.values() if kinds[op.kind].cost == "wait"]
    while pending:
        op, first = pending.pop()
        if waiting.setdefault(op.id, first) is first:
            pending += [
                (user, first) for result in op.results for user in users.get(result.name, ()) if user.id not in waiting
            ]
    return waiting


def _needed(op: Op) -> Iterator[str]:
    """Flags that are true whenever the op runs."""
    terms = op.when.terms if isinstance(op.when, And) else (op.when,)
    return (term.name for term in terms if isinstance(term, Flag))


def _earlier_work(run: list[Place], at: int) -> Place | None:
    """The first op after place ``at`` on its lane that belongs to an earlier step."""
    shift = run[at].step_shift
    later = (place for place in run[at + 1 :] if place.step_shift < shift)
    return next(later, next((place for place in run[:at] if place.step_shift + 1 < shift), None))


def _hold_up(op: Op, place: Place, first: str, behind: Place, lane: str, other: Op | None) -> HoldUpError:
    message = f"{instance(op.id, place.step_shift)} would hold up the step before it on lane {lane}"
    note = f"{instance(behind.id, behind.step_shift)} comes next there, and waits as long as the data takes"
    notes: tuple[Note, ...] = (Note(note, other.loc if other else None),)
    help = f"let another lane issue `{op.id}` (lane=packer), or move it behind the last op of the earlier step"
    if first != op.id:
        notes = (Note(f"`{op.id}` uses what `{first}` has to wait for"), *notes)
        help = f"run `{op.id}` early only if its operand is there by then (guard, or the law stage)"
    return HoldUpError(message, loc=op.loc, notes=notes, help=help)
