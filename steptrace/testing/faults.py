"""Faults put into a run on purpose: any op, any instance of it, made to fail, to get lost, to hang, to be slow, to die.

    from steptrace.testing import Fault, inject

    faults = inject(Fault("pack", step=2, kind="raise"))
    with pytest.raises(InjectedFaultError):
        steptrace.run("grpo{staleness=1}", parts, steps=5, pipeline="pipelined-boundary", around=[faults])

Kinds:

  raise        the op raises ``error``, before it does anything, or behind all that it does.
  lost-before  the call to the part gets lost on the way there: `ConnectionError`, and the part was not called.
  lost-after   the answer gets lost: the part was called and did all of it, then `ConnectionError`.
  kill         SIGKILL of the process that the run is in.
  hang         the op does not come back until the run has failed for it, and then does nothing.
  slow         the op takes ``seconds`` longer.

Where the part that an op calls lives in a process of its own, the fault is that process's: the part raises there; its
process is killed; it hangs, as one that is stopped; it is slow, stopped for ``seconds``; the request, or the answer, is
dropped on the way, which the transport makes up for. With ``driver=True`` it is the op's, as everywhere else; with
``worker="rollout"`` the process of that part is killed, hangs or is slow when the op comes, whatever that calls.

In this process, a call that gets lost does so between the op and its part, so that what an op does about it is tested
too: a stage that is lost falls back to the whole call. An op that calls no part of its own is lost as a whole.

Each fault comes once. A run that ends without having met one of its faults says so (``FaultNotMetError``).
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from steptrace.diag.base import Note, did_you_mean
from steptrace.diag.faults import (
    BadFaultError,
    FaultNotMetError,
    HangReleasedError,
    InjectedFaultError,
    UnknownFaultOpError,
)
from steptrace.ir import OpKind, Program
from steptrace.ir.builtin import kinds_of
from steptrace.ir.predicate import Every, Predicate, flags_of
from steptrace.lang.definition import ProgramDef
from steptrace.lower import Call, Plan
from steptrace.run.api import plan_for
from steptrace.run.binding import Parts
from steptrace.run.executor import Rule
from steptrace.run.instance import At
from steptrace.run.remote.part import RemotePart, line_of
from steptrace.run.session import Session
from steptrace.testing.raising import item_of, raise_once
from steptrace.workers import Worker

FaultKind = Literal["raise", "lost-before", "lost-after", "kill", "hang", "slow"]

KINDS: tuple[FaultKind, ...] = get_args(FaultKind)
"""The kinds of faults."""

_PROCESS: tuple[FaultKind, ...] = ("kill", "hang", "slow")
"""What may happen to a process."""

_REMOTE = ("trainer", "reference")
_ROLES = (*_REMOTE, "rollout")
"""The roles whose parts may have a process of their own."""

_UNCALLED = ("settle",)
"""Kinds whose op does not call the part that it binds to."""

_INDIRECT = ("write_checkpoint", *_UNCALLED)
"""Kinds whose op does not call the part by itself."""

_FAR = 1 << 62
_SLOW_S = 0.05
_LOOK_S = 0.01


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault.

    Attributes:
      op: id of the op; where there is none of that id, a kind: then the first op of that kind that comes.
      step: the step; -1 for what stands before step 0.
      micro: the micro-batch, for ops in a loop over them; None for the first that comes.
      kind: what happens.
      behind: for ``raise``, ``kill``, ``hang`` and ``slow``: whether it happens once the op has done all that it does.
      seconds: how long a slow op takes longer; how long a hang lasts at most.
      error: what is raised; None for an `InjectedFaultError`.
      driver: whether it strikes this process even where the part has one of its own.
      worker: for ``kill``, ``hang`` and ``slow``: the role whose process it strikes, whatever part the op calls.
    """

    op: str
    step: int
    micro: int | None = None
    kind: FaultKind = "raise"
    behind: bool = False
    seconds: float | None = None
    error: Exception | None = None
    driver: bool = False
    worker: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            near = did_you_mean(str(self.kind), KINDS)
            raise BadFaultError(f"there is no fault of kind {self.kind!r}", help=near or f"one of {', '.join(KINDS)}")
        for name, value, least in (("step", self.step, -1), ("micro", self.micro, 0)):
            if (value is not None or name == "step") and (type(value) is not int or value < least):
                raise BadFaultError(f"{name}={value!r}: steps are counted from -1, micro-batches from 0")
        if self.seconds is not None and not (isinstance(self.seconds, int | float) and self.seconds >= 0):
            raise BadFaultError(f"seconds={self.seconds!r}: seconds are counted from 0")
        if self.error is not None and not _raisable(self.error):
            raise BadFaultError(f"error={self.error!r} is no exception", help='give one: error=OSError("disk full")')
        if self.worker and (self.driver or self.kind not in _PROCESS):
            raise BadFaultError(
                f"worker={self.worker!r}, driver={self.driver}, kind={self.kind!r}: what strikes the process of a part "
                f"is one of {', '.join(_PROCESS)}, and does not strike this one"
            )

    def __str__(self) -> str:
        micro = "" if self.micro is None else f", micro-batch {self.micro}"
        whose = f" of `{self.worker}`" if self.worker else ""
        return f"{self.kind}{whose}{' behind' if self.behind else ''} at `{self.op}` of step {self.step}{micro}"


class Faults:
    """Faults to be given to a run, ``around=[faults]``; safe to use from its lanes.

    Args:
      faults: the faults.
      may_miss: whether the run may end without having met all of them.
      told: called with each fault right before it happens.

    Attributes:
      met: the faults that came, in order.
    """

    def __init__(
        self, faults: Sequence[Fault], *, may_miss: bool = False, told: Callable[[Fault], None] = lambda fault: None
    ) -> None:
        self.faults = tuple(faults)
        for fault in self.faults:
            if not isinstance(fault, Fault):
                raise BadFaultError(f"{fault!r} is no fault", help='one is written inject(Fault("pack", step=2))')
        self.met: list[Fault] = []
        self._may_miss = may_miss
        self._told = told
        self._left = list(self.faults)
        self._ids: frozenset[str] = frozenset()
        self._stopped: list[int] = []
        self._taking = threading.Lock()
        self._released = threading.Event()

    @property
    def unmet(self) -> tuple[Fault, ...]:
        """The faults that have not come."""
        return tuple(self._left)

    def release(self) -> None:
        """Let go of every op that hangs, and of every process that was stopped."""
        self._released.set()
        for pid in self._stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def begun(self, session: Session) -> None:
        """Told by the run before its first op.

        Raises:
          UnknownFaultOpError: a fault names an op that the run does not have.
        """
        self._ids = frozenset(call.op.id for call in _calls(session.plan))
        known = {*self._ids, *(call.op.kind for call in _calls(session.plan))}
        for fault in self.faults:
            if fault.op not in known:
                raise UnknownFaultOpError(
                    f"`{session.plan.program.name}` has no op `{fault.op}` to put a fault in",
                    help=did_you_mean(fault.op, sorted(known)) or "see the ops: `steptrace dump`, `steptrace opt`",
                )
            apart = [role for role in _ROLES if isinstance(getattr(session.parts, role, None), RemotePart)]
            if fault.worker and fault.worker not in apart:
                raise BadFaultError(
                    f"`{fault.worker}` has no process of its own in this run",
                    help=did_you_mean(fault.worker, apart)
                    or 'run on target="process", and bind `steptrace.remote(...)`',
                )

    def ended(self, session: Session) -> None:
        """Told by the run behind its last op, when nothing has failed.

        Raises:
          FaultNotMetError: there are faults that never came.
        """
        if self._left and not self._may_miss:
            raise FaultNotMetError(
                f"the run has ended, and {len(self._left)} of {len(self.faults)} faults never came",
                notes=tuple(Note(str(fault)) for fault in self._left),
                help="name an instance that the run has, or say may_miss=True",
            )

    def __call__(self, rule: Rule) -> Rule:
        """What an op does, with the faults in it."""

        def wrapped(run: Session, at: At, *operands: Any) -> Any:
            fault = self._due(at) if self._left and not _ships_nothing(run, at, operands) else None
            return rule(run, at, *operands) if fault is None else self._happen(fault, rule, run, at, operands)

        return wrapped

    def _due(self, at: At) -> Fault | None:
        """The fault of an instance, taken off the list."""
        with self._taking:
            fault = next((fault for fault in self._left if self._fits(fault, at)), None)
            if fault is not None:
                self._left.remove(fault)
                self.met.append(fault)
            return fault

    def _fits(self, fault: Fault, at: At) -> bool:
        named = at.op.id if fault.op in self._ids else at.op.kind
        return (named, at.step) == (fault.op, fault.step) and fault.micro in (None, at.item)

    def _happen(self, fault: Fault, rule: Rule, run: Session, at: At, operands: tuple[Any, ...]) -> Any:
        struck = _worker_of(run, at, fault)
        if struck is None:
            return self._happen_here(fault, rule, run, at, operands)
        if fault.worker and fault.behind:
            made = rule(run, at, *operands)
            self._disturb(fault, *struck, operands)
            return made
        self._disturb(fault, *struck, operands)
        return rule(run, at, *operands)

    def _happen_here(self, fault: Fault, rule: Rule, run: Session, at: At, operands: tuple[Any, ...]) -> Any:
        if fault.kind in ("lost-before", "lost-after"):
            return self._lost(fault, rule, run, at, operands)
        if fault.behind:
            made = rule(run, at, *operands)
            self._strike(fault, run, at)
            return made
        self._strike(fault, run, at)
        return rule(run, at, *operands)

    def _disturb(self, fault: Fault, worker: Worker, method: str, operands: tuple[Any, ...]) -> None:
        """Let something happen to a worker that is about to be called."""
        self._told(fault)
        match fault.kind:
            case "raise":
                item = next((item_of(one) for one in operands if item_of(one) is not None), None)
                worker.call("hosted_change", raise_once, method, _error(fault), fault.behind, item)
            case "kill":
                os.kill(worker.pid, signal.SIGKILL)
            case "hang" | "slow":
                os.kill(worker.pid, signal.SIGSTOP)
                self._stopped.append(worker.pid)
                seconds = fault.seconds if fault.kind == "hang" or fault.seconds is not None else _SLOW_S
                if seconds is not None:
                    threading.Timer(seconds, self.release).start()
            case _:
                worker.faults = _Dropping(method, "drop-request" if fault.kind == "lost-before" else "drop-reply")

    def _strike(self, fault: Fault, run: Session, at: At) -> None:
        self._told(fault)
        match fault.kind:
            case "raise":
                raise _error(fault)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "slow":
                time.sleep(_SLOW_S if fault.seconds is None else fault.seconds)
            case _:
                self._hang(fault, run)

    def _hang(self, fault: Fault, run: Session) -> None:
        """Do not come back before the run has failed."""
        end = None if fault.seconds is None else time.monotonic() + fault.seconds
        while not self._released.wait(_LOOK_S) and not run.stopped(_FAR):
            if end is not None and time.monotonic() > end:
                return
        raise HangReleasedError(f"a hang that was put here was let go: {fault}")

    def _lost(self, fault: Fault, rule: Rule, run: Session, at: At, operands: tuple[Any, ...]) -> Any:
        """The op with its call to a part lost; an op without one is lost as a whole."""
        self._told(fault)
        error = ConnectionError(f"a fault was put here: {fault}")
        kind = kinds_of(run.plan.program)[at.op.kind]
        role, _, method = kind.binds.partition(".")
        if method and (role in _REMOTE or kind.name == "dispatch") and kind.name not in _INDIRECT:
            line = _Line(getattr(run.parts, role), method, error, reaches=fault.kind == "lost-after")
            made = rule(_View(run, _with(run.parts, role, line)), at, *operands)
            if line.cut:
                return made
        elif fault.kind == "lost-after":
            rule(run, at, *operands)
        raise error


def _raisable(error: object) -> bool:
    """Whether an error can be raised: it is one, or a class of them."""
    return isinstance(error, BaseException) or (isinstance(error, type) and issubclass(error, BaseException))


def _error(fault: Fault) -> Exception:
    return fault.error or InjectedFaultError(f"a fault was put here: {fault}")


def _ships_nothing(run: Session, at: At, operands: tuple[Any, ...]) -> bool:
    """Whether an op is a stage that has no micro-batch, or is off: it does not call its part, and no fault comes."""
    return at.op.kind == "stage_fwd_bwd" and (operands[0] is None or not run.staging)


def _worker_of(run: Session, at: At, fault: Fault) -> tuple[Worker, str] | None:
    """The worker that a fault strikes, and the method that its op calls there; None where it strikes this process."""
    if fault.driver:
        return None
    kind = kinds_of(run.plan.program)[at.op.kind]
    role, _, method = (fault.worker, "", "") if fault.worker else kind.binds.partition(".")
    part = getattr(run.parts, role, None) if fault.worker or (method and kind.name not in _UNCALLED) else None
    if not isinstance(part, RemotePart) or not (fault.worker or hasattr(part, method)):
        return None
    return line_of(part).worker, method


class _Dropping:
    """Breaks a worker's connection at the next call of a method, once."""

    def __init__(self, method: str, how: str) -> None:
        self._method, self._how = method, how

    def __call__(self, method: str, request: int) -> str | None:
        if method != self._method:
            return None
        how, self._how = self._how, ""
        return how or None


def _with(parts: Parts, role: str, part: Any) -> Parts:
    changed: dict[str, Any] = {role: part}
    return replace(parts, **changed)


class _Line:
    """A part to which one call gets lost.

    Args:
      part: the part.
      method: the method whose first call it is.
      error: what the caller sees.
      reaches: whether the call arrives, so that only its answer is lost.
    """

    def __init__(self, part: Any, method: str, error: Exception, *, reaches: bool) -> None:
        self._part, self._method, self._error, self._reaches = part, method, error, reaches
        self.cut = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._part, name)
        if name != self._method or self.cut:
            return found

        def call(*args: Any, **how: Any) -> Any:
            if self.cut:
                return found(*args, **how)
            self.cut = True
            if self._reaches:
                found(*args, **how)
            raise self._error

        return call


class _View:
    """A session as one op sees it: with other parts."""

    def __init__(self, session: Session, parts: Any) -> None:
        self.__dict__.update(_session=session, parts=parts)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._session, name, value)


def inject(*faults: Fault, may_miss: bool = False, told: Callable[[Fault], None] = lambda fault: None) -> Faults:
    """Faults to give to a run: ``steptrace.run(..., around=[inject(Fault(...))])``; see `Faults`."""
    return Faults(faults, may_miss=may_miss, told=told)


def random_fault(
    program: Program | ProgramDef | str | Plan,
    seed: int,
    *,
    pipeline: str = "",
    steps: int = 4,
    kinds: Sequence[FaultKind] = KINDS,
) -> Fault:
    """A fault at an instance that surely comes: a function of the arguments.

    Args:
      program: the program, as `steptrace.run` takes it; or a plan.
      seed: of the choice.
      pipeline: the passes that the run applies.
      steps: how many steps the run has.
      kinds: the kinds to choose from.

    Returns:
      A fault in an op that may fail for a reason outside the program; in a loop over micro-batches, in its first round.

    Raises:
      BadFaultError: no op that may fail runs in so many steps, or there are no kinds.
    """
    plan = program if isinstance(program, Plan) else plan_for(program, pipeline)
    draw = random.Random(seed)
    body = [call for lane in plan.lanes for node in lane.nodes for call in _calls_of(node)]
    sure = [(call, due) for call in body if may_fail(call.kind) and (due := steps_of(call, steps))]
    if not sure or not kinds:
        raise BadFaultError(f"there is no fault to choose: {len(sure)} ops in {steps} steps, {len(kinds)} kinds")
    call, due = draw.choice(sure)
    kind = draw.choice(tuple(kinds))
    behind = kind in ("raise", "kill", "slow") and draw.random() < 0.5
    return Fault(call.op.id, draw.choice(due), kind=kind, behind=behind)


def may_fail(kind: OpKind) -> bool:
    """Whether an op of a kind can fail for a reason outside the program."""
    return kind.may_fail


def steps_of(call: Call, steps: int) -> tuple[int, ...]:
    """The steps in which an op surely runs; none where that depends on a flag."""
    if any(flags_of(call.when)):
        return ()
    periods = list(_periods(call.when))
    return tuple(step for step in range(steps) if all((step + 1) % period == 0 for period in periods))


def _periods(predicate: Predicate) -> Iterator[int]:
    if isinstance(predicate, Every):
        yield predicate.period
    for term in getattr(predicate, "terms", ()):
        yield from _periods(term)


def _calls_of(node: Any) -> Iterator[Call]:
    from steptrace.lower.plan import calls_of

    return calls_of((node,))


def _calls(plan: Plan) -> Iterator[Call]:
    """The calls that a run of a plan may make: those of the schedule, and of its source for what it resumes with."""
    yield from plan.calls()
    yield from plan.base.calls()
    for lane in plan.lanes:
        for node in lane.nodes:
            yield from _calls_of(node)
