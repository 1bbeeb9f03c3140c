"""The executor: drives a plan in program order on the caller's thread."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from inspect import Parameter, signature
from typing import Any

from steptrace.diag import SteptraceError
from steptrace.diag.running import TaskValueError
from steptrace.ir import (
    Always,
    And,
    Every,
    First,
    Flag,
    Has,
    Last,
    MicroIs,
    Not,
    Or,
    Predicate,
)
from steptrace.lower import Call, LoopPlan, PlanNode
from steptrace.run.borders import same_groups
from steptrace.run.rng import key_for
from steptrace.run.session import At, Session
from steptrace.run.verbs import VERBS, Results


class EndOfDataSignal(Exception):  # noqa: N818 - not an error: it carries the end of the data out of a step
    """A take found that the data has ended: the step it was for does not exist."""


class Executor:
    """Runs the prologue, steps and epilogue of a session's plan.

    Args:
      run: the session.
      wait: waits until the device has finished what was dispatched; called after each op when given, so that the
        time of an op is the time of its work. Left out, ops return at dispatch and the time of an op is what its
        call took on the host.
    """

    def __init__(self, run: Session, wait: Callable[[], None] | None = None) -> None:
        self._run = run
        self._wait = wait
        self._item = 0
        self._last = False
        self.seconds: dict[str, float] = defaultdict(float)
        self.step_seconds: dict[str, float] = {}

    def prologue(self, step: int = -1) -> None:
        """Run what stands before the first step, as the instance of ``step``."""
        self._nodes(self._run.plan.prologue, step)

    def epilogue(self, step: int) -> None:
        """Run what stands after the last step, as the instance of ``step``."""
        self._nodes(self._run.plan.epilogue, step)

    def step(self, step: int) -> bool:
        """Run one step; False when the data ended before it, in which case nothing of it was trained."""
        if not self._run.step_exists():
            return False
        self.step_seconds = {}
        try:
            self._nodes(self._run.plan.body, step)
        except EndOfDataSignal:
            return False
        self._run.end_step()
        return True

    def _nodes(self, nodes: tuple[PlanNode, ...], step: int) -> None:
        for node in nodes:
            if isinstance(node, LoopPlan):
                self._loop(node, step)
            elif self._holds(node.when, step):
                self._call(node, step)

    def _loop(self, loop: LoopPlan, step: int) -> None:
        outer = (self._item, self._last)
        index = 0
        while loop.count is None or index < loop.count:
            self._item = index
            if loop.head is not None and self._call(loop.head, step) is None:
                break
            self._last = (
                loop.kind == "micro_batches" and bool(self._run.slots[loop.head.writes[1]]) if loop.head else False
            )
            self._nodes(loop.body, step)
            index += 1
        self._item, self._last = outer

    def _call(self, call: Call, step: int) -> Results:
        args = [self._run.carries[read.carry] if read.carry else self._run.slots[read.slot] for read in call.reads]
        at = At(call.op, step, self._item)
        start = time.perf_counter()
        try:
            results = self._user_op(call, at, args) if call.kind.user else VERBS[call.kind.name](self._run, at, *args)
            if self._wait is not None and not call.kind.blocking:
                self._wait()
        except Exception as error:
            _attribute(error, at)
            raise
        self._note_time(call.kind.name, time.perf_counter() - start)
        if results is not None:
            for slot, value in zip(call.writes, results, strict=True):
                self._run.slots[slot] = value
            self._check_exists(call, results)
        return results

    def _check_exists(self, call: Call, results: tuple[Any, ...]) -> None:
        if call.kind.name == "take" and not results[1]:
            raise EndOfDataSignal

    def _user_op(self, call: Call, at: At, args: list[Any]) -> Results:
        function = self._run.parts.ops[call.kind.name]
        made = function(*args, **self._context(function, at))
        declared = len(call.op.results)
        if declared == 0:
            return ()
        values = made if declared > 1 else (made,)
        if not isinstance(values, tuple) or len(values) != declared or any(value is None for value in values):
            raise TaskValueError(
                f"`{call.kind.name}` returned {type(made).__name__}, and declares {declared} result(s)", loc=at.op.loc
            )
        checked = []
        for value, given in zip(values, call.kind.results, strict=True):
            groups = next(
                (arg for arg, spec in zip(args, call.kind.operands, strict=True) if spec.base == "groups"), None
            )
            checked.append(same_groups(value, groups, at) if given.base == "groups" and groups is not None else value)
        return tuple(checked)

    def _context(self, function: Callable[..., Any], at: At) -> dict[str, Any]:
        """What a user's op asks for by keyword-only parameters: ``step``, and ``key``, a PRNG key of its instance."""
        asked = {
            name
            for name, parameter in signature(function).parameters.items()
            if parameter.kind is Parameter.KEYWORD_ONLY
        }
        context: dict[str, Any] = {}
        if "step" in asked:
            context["step"] = at.step
        if "key" in asked:
            context["key"] = key_for(self._run.seed, at.op.id, at.step, at.item)
        return context

    def _note_time(self, kind: str, seconds: float) -> None:
        self.seconds[kind] += seconds
        self.step_seconds[kind] = self.step_seconds.get(kind, 0.0) + seconds

    def _holds(self, predicate: Predicate, step: int) -> bool:
        match predicate:
            case Always():
                return True
            case First():
                return self._item == 0
            case Last():
                return self._last
            case MicroIs(index):
                return self._item == index
            case Every(period):
                return (step + 1) % period == 0
            case Has(capability):
                return capability in self._run.plan.target.capabilities
            case Flag(name):
                return bool(self._run.slots[self._run.plan.slots[name]])
            case Not(term):
                return not self._holds(term, step)
            case And(terms):
                return all(self._holds(term, step) for term in terms)
            case Or(terms):
                return any(self._holds(term, step) for term in terms)


def _attribute(error: Exception, at: At) -> None:
    """Say in the error which op and step it came from, and the user's line."""
    if isinstance(error, EndOfDataSignal):
        return
    if isinstance(error, SteptraceError):
        error.loc = error.loc or at.op.loc
        return
    with suppress(AttributeError):
        error.add_note(
            f"in `{at.op.id}` of step {at.step}, lane {at.op.lane}" + (f" ({at.op.loc})" if at.op.loc else "")
        )
