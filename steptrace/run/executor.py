"""The executor: drives a plan in program order on the caller's thread."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping

from steptrace.diag import Note, SteptraceError
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
from steptrace.run.instance import At
from steptrace.run.session import Session, whole
from steptrace.run.verbs import VERBS, Results


class Executor:
    """Runs the prologue, steps and epilogue of a session's plan.

    Args:
      run: the session.
      wait: waits until the device has finished what was dispatched; called after each op when given, so that the
        time of an op is the time of its work. Left out, ops return at dispatch and the time of an op is what its
        call took on the host.

    Attributes:
      seconds: time spent in each kind of op so far, in seconds.
      step_seconds: the same for the step that ran last.
    """

    def __init__(self, run: Session, wait: Callable[[], None] | None = None) -> None:
        self._run = run
        self._wait = wait
        self._rules: Mapping[str, Callable[..., Results]] = {**VERBS, **run.parts.ops}
        self._rounds: tuple[int, ...] = ()
        self._count: int | None = None
        self._micro = 0
        self._last = False
        self.seconds: dict[str, float] = defaultdict(float)
        self.step_seconds: dict[str, float] = {}

    def prologue(self) -> None:
        """Run what stands before step 0, as the instance of step -1."""
        self._nodes(self._run.plan.prologue, -1)

    def epilogue(self, step: int) -> None:
        """Run what stands after the last step, as the instance of ``step``."""
        self._nodes(self._run.plan.epilogue, step)

    def step(self, step: int) -> bool:
        """Run one step; False when the data ended before it, in which case nothing of it was run."""
        drawn = [whole(op, "prompts") for op in self._run.dispatches if self._holds(op.when, step)]
        if not self._run.has_prompts(sum(drawn)):
            return False
        self._finish(self._run.plan.body, step)
        return True

    def rest(self, step: int, behind: str) -> None:
        """Run what stands behind an op in a step, whose work up to there was restored."""
        body = self._run.plan.body
        done = next(index for index, node in enumerate(body) if isinstance(node, Call) and node.op.id == behind)
        self._finish(body[done + 1 :], step)

    def _finish(self, nodes: tuple[PlanNode, ...], step: int) -> None:
        self.step_seconds = {}
        self._nodes(nodes, step)
        self._run.end_step(step)

    def _nodes(self, nodes: tuple[PlanNode, ...], step: int) -> None:
        for node in nodes:
            if isinstance(node, LoopPlan):
                self._loop(node, step)
            elif self._holds(node.when, step):
                self._call(node, step)

    def _loop(self, loop: LoopPlan, step: int) -> None:
        outer = (self._rounds, self._count, self._micro, self._last)
        index = 0
        while loop.count is None or index < loop.count:
            self._rounds, self._count = (*outer[0], index), loop.count
            if loop.head is not None and self._call(loop.head, step) is None:
                break
            if loop.kind == "micro_batches" and loop.head is not None:
                self._micro, self._last = index, bool(self._run.slots[loop.head.writes[1]])
            self._nodes(loop.body, step)
            index += 1
        self._rounds, self._count, self._micro, self._last = outer

    def _call(self, call: Call, step: int) -> Results:
        run = self._run
        args = [run.carries[read.carry] if read.carry else run.slots[read.slot] for read in call.reads]
        at = At(call.op, step, self._rounds, self._count)
        start = time.perf_counter()
        try:
            results = self._rules[call.kind.name](run, at, *args)
            if self._wait is not None and not call.kind.blocking:
                self._wait()
        except Exception as error:
            _attribute(error, at)
            raise
        self._note_time(call.kind.name, time.perf_counter() - start)
        if results is not None:
            for slot, value in zip(call.writes, results, strict=True):
                run.slots[slot] = value
        return results

    def _note_time(self, kind: str, seconds: float) -> None:
        self.seconds[kind] += seconds
        self.step_seconds[kind] = self.step_seconds.get(kind, 0.0) + seconds

    def _holds(self, predicate: Predicate, step: int) -> bool:
        match predicate:
            case Always():
                return True
            case First():
                return self._micro == 0
            case Last():
                return self._last
            case MicroIs(index):
                return self._micro == index
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
    where = f"in `{at.op.id}` of step {at.step}, lane {at.op.lane}"
    if isinstance(error, SteptraceError):
        error.notes = (*error.notes, Note(where, at.op.loc if error.loc else None))
        error.loc = error.loc or at.op.loc
    else:
        error.add_note(f"{where} ({at.op.loc})" if at.op.loc else where)
