"""Gradients: each accumulation reaches exactly one update, and nothing is published in between."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from steptrace.diag.base import SteptraceError
from steptrace.diag.structure import (
    LeftoverGradientsError,
    MissingFwdBwdError,
    MissingUpdateError,
    MovedPolicyError,
    RepeatedUpdateError,
    UnappliedGradientsError,
    UpdateInMicroBatchesError,
)
from steptrace.ir.predicate import Last
from steptrace.ir.program import Op, walk
from steptrace.ir.verify.conditions import implies, rewritten
from steptrace.ir.verify.denominator import double_denominators, names_parts
from steptrace.ir.verify.ground import Ground
from steptrace.ir.verify.runs import Event, Finding, Role, Run, known_flags, report_runs, roles_of


def check_training(ground: Ground, runs: list[Run]) -> None:
    """A step has gradients and applies each once."""
    roles = {op.id: roles_of(ground, op) for op, _ in walk(ground.program.body)}
    every = frozenset().union(*roles.values())
    for role, error, message, help in _NEEDED:
        if role not in every:
            _report_missing(ground, error, message, help, roles)
    _check_in_micro_batches(ground, roles)
    if {Role.ACCUMULATE, Role.APPLY} <= every:
        report_runs(ground, _findings, runs)
        if names_parts(ground):
            report_runs(ground, partial(double_denominators, ground), runs)


_NEEDED = (
    (
        Role.ACCUMULATE,
        MissingFwdBwdError,
        "no op of the step computes a gradient",
        "call step.fwd_bwd(mb) for each micro-batch",
    ),
    (
        Role.APPLY,
        MissingUpdateError,
        "no op of the step applies the gradients",
        "call step.update() after the loop over micro-batches",
    ),
)


def _report_missing(
    ground: Ground, error: type[SteptraceError], message: str, help: str, roles: dict[str, frozenset[Role]]
) -> None:
    """Reports what the step lacks: at the op that has the other half, else at the program."""
    for op, _ in walk(ground.program.body):
        if roles[op.id] & {Role.ACCUMULATE, Role.APPLY}:
            verb = "adds gradients to" if Role.ACCUMULATE in roles[op.id] else "applies"
            ground.report(error, f"{message}: `{op.id}` {verb} the accumulator", op, help=help)
            return
    ground.report_item(error, message, "program", ground.program.loc, help=help)


def _check_in_micro_batches(ground: Ground, roles: dict[str, frozenset[Role]]) -> None:
    flags = known_flags(ground)
    for op, loops in walk(ground.program.body):
        micro = op.micro is not None or any(loop.kind == "micro_batches" for loop in loops)
        if Role.APPLY not in roles[op.id] or not micro or op.attr("closes"):
            continue
        if not implies(rewritten(op.when, flags), (Last(),)):
            message = f"`{op.id}` applies the gradients of each micro-batch by itself"
            help = "move it after the loop; for several updates a step use step.mini_batches"
            ground.report(UpdateInMicroBatchesError, message, op, help=help)


def _findings(events: tuple[Event, ...]) -> Iterator[Finding]:
    """Follows the accumulator through one run."""
    pending: Op | None = None
    applied: Op | None = None
    for event in events:
        op, roles = event.op, event.roles
        if pending is not None and Role.EXPORT in roles:
            message = f"`{op.id}` hands out the weights while gradients are accumulated and not applied"
            notes = ((f"`{pending.id}` accumulates", pending),)
            yield Finding(UnappliedGradientsError, op, message, notes, "move it after the update")
        if Role.ANCHOR in roles and applied is not None:
            message = f"`{op.id}` makes the old log-probs with weights that `{applied.id}` has moved since the rollout"
            help = f"leave `{op.id}` out: the loss then uses the log-probs of the rollout; or update once in the step"
            yield Finding(MovedPolicyError, op, message, ((f"`{applied.id}` runs before it", applied),), help)
        if Role.ACCUMULATE in roles:
            pending = op
        if Role.APPLY in roles:
            if pending is None:
                yield _nothing_to_apply(op, applied)
            pending, applied = None, op
    if pending is not None:
        message = f"no update of the step applies the gradients that `{pending.id}` adds"
        before = ((f"`{applied.id}` runs before it", applied),) if applied else ()
        yield Finding(
            LeftoverGradientsError, pending, message, before, "let an update follow, under the same condition"
        )


def _nothing_to_apply(op: Op, applied: Op | None) -> Finding:
    if applied is None:
        return Finding(RepeatedUpdateError, op, f"`{op.id}` applies gradients before any are accumulated")
    message = f"`{op.id}` is a second update on one accumulation"
    notes = ((f"`{applied.id}` has applied it", applied),)
    return Finding(RepeatedUpdateError, op, message, notes, "remove one of them")
