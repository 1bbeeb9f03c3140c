"""Parts where the target wants them: in this process, or each in a worker of its own for as long as it is needed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from steptrace.diag.base import Note, SteptraceError, a_or_an
from steptrace.diag.remote import LocalPartError
from steptrace.lower import Call, Plan
from steptrace.lower.targets import OWN_PROCESSES
from steptrace.run.binding import check_bound
from steptrace.run.remote.hosted import HostedPart
from steptrace.run.remote.line import Line
from steptrace.run.remote.part import RemotePart, begin, line_of
from steptrace.run.remote.places import placed
from steptrace.workers import Remote, Worker

HOSTED = ("trainer", "rollout", "reference")
"""The roles whose parts have a process of their own under a target with processes."""

SLOTS = 4
"""How many calls' micro-batches a worker may read in place at a time, at least."""

_CALLS_ON_ONE = 2
"""How many calls of one part read the same micro-batch: log-probs under the actor, and the training call."""


@contextmanager
def in_place(plan: Plan, bind: Mapping[str, Any], wait_s: float) -> Iterator[dict[str, Any]]:
    """The parts of a run where its target wants them; what was started for it is closed behind it, whatever happens.

    Args:
      plan: the plan; parts of `HOSTED` that it does not call are left out where they would have to be made.
      bind: parts by role; a `Remote` is made, here or in a worker.
      wait_s: how long a worker is waited for, in seconds.

    Raises:
      UnknownRoleError, UnboundPartError: before any part is made.
      LocalPartError: the target has processes, and a part is bound that lives in this one.
      whatever the making of a part raises, with a note of its role.
    """
    check_bound(plan, bind)
    callers = _callers(plan)
    wanted = {
        name: part
        for name, part in bind.items()
        if not (name in HOSTED and isinstance(part, Remote)) or name in callers
    }
    if OWN_PROCESSES not in plan.target.capabilities:
        yield built(wanted)
        return
    for role, call in callers.items():
        _check_remote(role, wanted.get(role), call, plan)
    lent = lent_at_most(plan)
    with hosted(wanted, slots=max(SLOTS, _CALLS_ON_ONE * lent)) as there:
        for part in there.values():
            if isinstance(part, RemotePart):
                begin(part, wait_s, lends=bool(lent))
        yield there


def noting(plan: Plan) -> tuple[Callable[[Callable[..., Any]], Callable[..., Any]], ...]:
    """What goes around the ops of a plan, so that calls which nobody waits for are known by their op."""
    return (placed,) if OWN_PROCESSES in plan.target.capabilities else ()


def built(bind: Mapping[str, Any]) -> dict[str, Any]:
    """The parts with each `Remote` made in this process, once."""
    made: dict[int, Any] = {}
    for name, part in bind.items():
        if isinstance(part, Remote) and id(part) not in made:
            with _making(name, part):
                made[id(part)] = part.build()
    return {name: made.get(id(part), part) for name, part in bind.items()}


def lent_at_most(plan: Plan) -> int:
    """How many micro-batches the schedule lends at a time: the buffers of its ring; 0 where it gives none back."""
    if not any(op.kind == "release" for op in plan.program.ops()):
        return 0
    return sum(one.capacity for one in plan.program.resources if one.name.startswith("buffers."))


@contextmanager
def hosted(bind: Mapping[str, Any], *, slots: int = SLOTS) -> Iterator[dict[str, Any]]:
    """The parts, with each `Remote` of `HOSTED` in a worker of its own, and any other one made in this process.

    Runs that are given these parts use the same workers one after another: what they have compiled, they keep. Behind a
    run that has failed, `renew` lets the parts be called again.

    Args:
      bind: parts by role.
      slots: how many calls' micro-batches each worker may read in place at a time.

    At the end every call is waited for, and the workers are closed; on a failure they are closed at once.

    Raises:
      whatever the making of a part raises, with a note of its role; at the end, the failure of a call that nobody has
      waited for.
    """
    remotes = {role: part for role, part in bind.items() if role in HOSTED and isinstance(part, Remote)}
    rest = built({name: part for name, part in bind.items() if name not in remotes})
    workers: dict[int, Worker] = {}
    try:
        for role, part in remotes.items():
            if id(part) not in workers:  # one that is bound to several roles has one process
                workers[id(part)] = Worker.spawn(Remote(HostedPart, (part,), {}, part.loc), name=role, slots=slots)
        parts: dict[int, RemotePart] = {}
        for role, part in remotes.items():
            if id(part) not in parts:
                with _making(role, part):
                    parts[id(part)] = RemotePart(Line(workers[id(part)].ready()))
        yield {**rest, **{role: parts[id(part)] for role, part in remotes.items()}}
        for hosted_part in parts.values():
            line_of(hosted_part).settle()
    except BaseException:
        _at_once([worker.kill for worker in workers.values()])
        raise
    _at_once([worker.close for worker in workers.values()])


def renew(parts: Mapping[str, Any]) -> None:
    """Forget what has failed in the parts' processes, and what they have set aside: they can be set back, and called.

    A run does so at its beginning, and ``restore_checkpoint`` of a trainer does.
    """
    for part in parts.values():
        if isinstance(part, RemotePart):
            line_of(part).renew()


def _at_once(endings: Sequence[Callable[[], None]]) -> None:
    """End workers side by side."""
    threads = [threading.Thread(target=ending) for ending in endings]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _callers(plan: Plan) -> dict[str, Call]:
    """The roles of `HOSTED` that a plan calls, each with the first call of a step that does."""
    before, callers = plan.program.prologue, dict[str, Call]()
    for verb, call in plan.verbs().items():
        role = verb.partition(".")[0]
        if role in HOSTED and (role not in callers or callers[role].op in before):
            callers[role] = call
    return callers


def _check_remote(role: str, part: Any, call: Call, plan: Plan) -> None:
    if part is None or isinstance(part, Remote | RemotePart):
        return
    name = getattr(part, "__name__", type(part).__name__)
    raise LocalPartError(
        f"`{role}` is bound to {a_or_an(name)} of this process, and the `{plan.target.name}` target has its {role} in "
        "a process of its own",
        loc=call.op.loc,
        help=f'bind what makes it: bind={{"{role}": steptrace.remote(make_{role}, ...)}}',
    )


@contextmanager
def _making(role: str, part: Remote) -> Iterator[None]:
    """Says in an error which part was made, and where it was written down."""
    try:
        yield
    except Exception as error:
        words = f"while `{role}` was made"
        if isinstance(error, SteptraceError):
            error.notes = (*error.notes, Note(words, part.loc if error.loc and error.loc != part.loc else None))
            error.loc = error.loc or part.loc
        else:
            error.add_note(f"{words} ({part.loc})" if part.loc else words)
        raise
