"""Rollouts: groups are dispatched, taken, committed and freed; weights are published before they generate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from steptrace.diag.structure import (
    CommitBeforeTakeError,
    CommitTwiceError,
    DispatchWithoutTakeError,
    FreedTooEarlyError,
    MisplacedOpError,
    MissingCommitError,
    TakeWithoutDispatchError,
    TwoWeightWritersError,
    UnpublishedWeightsError,
)
from steptrace.ir.predicate import ALWAYS
from steptrace.ir.program import Op, ops_of, walk
from steptrace.ir.resource import Access
from steptrace.ir.verify.ground import Ground
from steptrace.ir.verify.runs import Event, Finding, Role, Run, report_runs, roles_of

_OF_A_STEP = {Role.ACCUMULATE, Role.APPLY, Role.DISPATCH, Role.TAKE, Role.COMMIT}


def check_rollouts(ground: Ground, runs: list[Run]) -> None:
    """The rules about groups and weights."""
    _check_misplaced(ground)
    report_runs(ground, _queue_findings, runs)
    report_runs(ground, _free_findings(ground), runs)
    _check_weights(ground, runs)


def _check_misplaced(ground: Ground) -> None:
    for nodes, where in (
        (ground.program.prologue, "before the first step"),
        (ground.program.epilogue, "after the last step"),
    ):
        for op, _ in walk(nodes):
            if roles_of(ground, op) & _OF_A_STEP:
                message = f"`{op.id}` stands {where}, and is counted step by step"
                ground.report(MisplacedOpError, message, op, help="move it into `step k`")


def _distinct(events: Iterable[Event], role: Role) -> list[Op]:
    """The ops of a role as they run; the rounds of a loop over micro-batches take one step's groups together.

    A round that was peeled off the loop is one of them.
    """
    found: list[Op] = []
    for event in events:
        if role in event.roles and not (event.stream and any(event.op.origin == op.origin for op in found)):
            found.append(event.op)
    return found


def _queue_findings(events: tuple[Event, ...]) -> Iterator[Finding]:
    dispatched, taken = _distinct(events, Role.DISPATCH), _distinct(events, Role.TAKE)
    if len(taken) > len(dispatched):
        op = taken[len(dispatched)]
        message = f"`{op.id}` waits for groups that the step does not dispatch"
        yield Finding(TakeWithoutDispatchError, op, message, help="dispatch as often as you take")
    if len(dispatched) > len(taken):
        op = dispatched[len(taken)]
        message = f"`{op.id}` dispatches groups that the step does not take"
        yield Finding(DispatchWithoutTakeError, op, message, help="take as often as you dispatch")
    commits = [event.op for event in events if Role.COMMIT in event.roles]
    if taken and not commits:
        message = f"the groups that `{taken[0].id}` takes are never committed"
        yield Finding(MissingCommitError, taken[0], message, help="call step.commit() after the update")
    for op in commits[1:2]:
        message = f"`{op.id}` commits the groups of the step a second time"
        yield Finding(CommitTwiceError, op, message, ((f"`{commits[0].id}` commits them", commits[0]),))
    if commits:
        first = next(at for at, event in enumerate(events) if event.op is commits[0])
        late = [event.op for event in events[first:] if Role.TAKE in event.roles]
        if late or not taken:
            message = f"`{commits[0].id}` commits groups before they are taken"
            notes = ((f"`{late[0].id}` takes them", late[0]),) if late else ()
            yield Finding(CommitBeforeTakeError, commits[0], message, notes, "commit after the update")


def _free_findings(ground: Ground) -> Callable[[tuple[Event, ...]], Iterator[Finding]]:
    def findings(events: tuple[Event, ...]) -> Iterator[Finding]:
        freed: Op | None = None
        for event in events:
            if freed is not None and _reads_host(ground, event.op):
                message = f"`{freed.id}` releases the host memory of the step before `{event.op.id}` reads it"
                notes = ((f"`{event.op.id}` reads it", event.op),)
                yield Finding(FreedTooEarlyError, freed, message, notes, "move it after the last reader")
                return
            if Role.FREE in event.roles:
                freed = event.op

    return findings


def _reads_host(ground: Ground, op: Op) -> bool:
    """Whether an op reads the groups or micro-batches of its step."""
    if any(operand.base in ("groups", "batch", "micro_batch") for operand in ground.row(op).operands):
        return True
    return any(
        effect.access is Access.READ and effect.resource == "host" and (effect.index is None or effect.index.step == 0)
        for effect in ground.effects(op)
    )


def _check_weights(ground: Ground, runs: list[Run]) -> None:
    program = ground.program
    generating = [op for op in ops_of(program.body) if _generates(ground, op)]
    initial = [op for op in ops_of(program.prologue) if Role.PUBLISH in roles_of(ground, op)]
    if generating and not any(op.when == ALWAYS for op in initial):
        message = f"in step 0, `{generating[0].id}` generates with weights that nobody has published"
        help = "put a sync_weights before step 0"
        ground.report(UnpublishedWeightsError, message, generating[0], help=help)
    for op in initial[1:]:
        ground.report(TwoWeightWritersError, f"`{op.id}` publishes the initial weights a second time", op)

    def findings(events: tuple[Event, ...]) -> Iterator[Finding]:
        writers = [event.op for event in events if Role.PUBLISH in event.roles]
        for op in writers[1:2]:
            message = f"`{op.id}` writes the weights of the step's version a second time"
            notes = ((f"`{writers[0].id}` publishes them", writers[0]),)
            yield Finding(TwoWeightWritersError, op, message, notes, "keep one writer for each version")
        if generating and not writers and program.contract.weights == "pinned":
            message = f"`{generating[0].id}` waits for the weights of a step that publishes none"
            yield Finding(UnpublishedWeightsError, generating[0], message, help="let each step sync its weights")

    report_runs(ground, findings, runs)
    published = any(Role.PUBLISH in event.roles for run in runs for event in run.events)
    if generating and not published and program.contract.weights != "pinned":
        message = f"`{generating[0].id}` generates with the initial weights for ever: no step publishes any"
        ground.report(UnpublishedWeightsError, message, generating[0], help="let the step sync its weights")


def _generates(ground: Ground, op: Op) -> bool:
    """Whether an op generates with the weights of some step's version."""
    return any(
        effect.access is Access.READ and effect.resource == "rollout.weights" and effect.index is not None
        for effect in ground.effects(op)
    )
