"""The executor: drives a plan, a thread for each lane but the caller's."""

from __future__ import annotations

import contextvars
import logging
import signal
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from steptrace.lower import Call, Lane, Plan, StreamPlan
from steptrace.run.calls import Maker, ReadyNode
from steptrace.run.contexts import callers
from steptrace.run.frames import Frame
from steptrace.run.horizon import Horizon
from steptrace.run.interrupts import handled, raise_lost
from steptrace.run.lane import LaneRunner
from steptrace.run.progress import Progress, Watch
from steptrace.run.session import Session
from steptrace.run.sync_rounds import with_rounds
from steptrace.run.verbs import PART_VERBS, VERBS, Results

STALL_S = 3600.0
"""How long an op waits for another lane before the run is given up, in seconds."""

Rule: TypeAlias = Callable[..., Results]
"""What an op does: ``rule(session, at, *operands)`` gives its results, or None behind the last micro-batch."""

Around: TypeAlias = Callable[[Rule], Rule]
"""Makes a rule of a rule: to watch ops, to time them, to make them fail. It is called once for each kind of op."""

_PATIENCE = 2
_TURN_S = 0.0005
_LOG = logging.getLogger("steptrace")


class Executor:
    """Runs the prologue, steps and epilogue of a session's plan.

    What is dispatched and not finished stays bounded by construction: each step reads its metrics, and a trainer
    bounds the calls of one step, so no lane can fill the queue of a device.

    Args:
      run: the session.
      wait: waits until the device has finished what was dispatched; called after each op when given, so that the
        time of an op is the time of its work. Left out, ops return at dispatch and the time of an op is what its
        call took on the host.
      stall_s: how long an op may wait for another lane, in seconds.
      around: put around what each op does, the first innermost; none costs nothing.

    Attributes:
      seconds: time spent in each kind of op so far, in seconds.
    """

    def __init__(
        self,
        run: Session,
        wait: Callable[[], None] | None = None,
        stall_s: float = STALL_S,
        around: Sequence[Around] = (),
    ) -> None:
        self._run = run
        self._wait = wait
        self._stall_s = stall_s
        rules: dict[str, Rule] = {**VERBS, **PART_VERBS, **run.parts.ops}
        for wrap in around:
            rules = {kind: wrap(rule) for kind, rule in rules.items()}
        self._rules: Mapping[str, Rule] = with_rounds(rules)
        self.seconds: dict[str, float] = defaultdict(float)

    def prologue(self) -> None:
        """Run what stands before step 0, as the instance of step -1."""
        self._alone(self._run.plan.prologue, -1, self._run.frames.before)

    def epilogue(self, step: int) -> None:
        """Run what stands after the last step, as the instance of ``step``."""
        self._alone(self._run.plan.epilogue, step, Frame(step, len(self._run.plan.slots)))

    def rest(self, step: int, behind: str) -> None:
        """Run what stands behind an op in a step, whose work up to there was restored.

        In the order of the program as written, whatever the schedule: a checkpoint may come from another one.
        """
        body = self._run.plan.base.body
        done = next(index for index, node in enumerate(body) if isinstance(node, Call) and node.op.id == behind)
        frame = self._run.frames.at(step)
        self._alone(body[done + 1 :], step, frame)
        self._run.end_step(step)

    def steps(self, first: int, limit: int | None, ended: Watch | None = None) -> int:
        """Run the steps from ``first`` on, until step ``limit`` or the end of the data.

        Args:
          first: the first step.
          limit: the step not to begin; None for none.
          ended: told of each step, in order, on the caller's thread, once every lane is past it.

        Returns:
          The step that would come next.

        Raises:
          whatever the first op to fail has raised, with a note of the op, the step and the lane; before that, every
          lane has come to its end, and the steps before the one that failed are complete.
        """
        return _Running(self, self._run, first, limit, ended).through()

    def maker(self, plan: Plan, watched: frozenset[str]) -> Maker:
        """Makes the calls of a plan ready."""
        return Maker(plan, self._rules, self._run.frames, watched, self._wait is not None)

    def lane(self, name: str, progress: Progress, first: int) -> LaneRunner:
        """A lane of that name."""
        return LaneRunner(self._run, name, progress, first, self._wait)

    def progress(self, plan: Plan, first: int) -> Progress:
        """Where the lanes of a plan meet."""
        return Progress(_watched(plan), first, self._stall_s)

    def note_seconds(self, frame: Frame) -> dict[str, float]:
        """Add the times of a frame to the run's; gives those of the frame, by kind of op."""
        spent: dict[str, float] = defaultdict(float)
        for kinds in frame.seconds.values():
            for kind, seconds in kinds.items():
                spent[kind] += seconds
                self.seconds[kind] += seconds
        frame.seconds = {}
        return dict(spent)

    def _alone(self, nodes: tuple[Any, ...], step: int, frame: Frame) -> None:
        """Run nodes of the program as written on the caller's thread."""
        base = self._run.plan.base
        runner = self.lane("host", Progress((), step, self._stall_s), step)
        runner.nodes(self.maker(base, frozenset()).nodes(nodes), step, frame)
        self.note_seconds(frame)


def _watched(plan: Plan) -> frozenset[str]:
    """Ids that some lane waits for: those of holds, and the heads of loops that lanes share."""
    held = {hold.before for holds in plan.holds.values() for hold in holds}
    shared = {
        node.head.op.id for lane in plan.lanes for node in lane.nodes if isinstance(node, StreamPlan) and node.shared
    }
    return frozenset(held | shared)


class _Running:
    """One go through the steps."""

    def __init__(self, executor: Executor, run: Session, first: int, limit: int | None, ended: Watch | None) -> None:
        plan = run.plan
        self._executor, self._run, self._first, self._ended = executor, run, first, ended
        self._horizon = Horizon(run, first, limit)
        run.behind = self._horizon.behind
        run.first = first
        self._progress = executor.progress(plan, first)
        run.stopped = lambda step: step >= self._progress.limit
        self._next = first
        self._lanes = [lane for lane in plan.lanes if lane.nodes]
        maker = executor.maker(plan, self._progress.watched)
        self._ready = {lane.name: maker.nodes(lane.nodes) for lane in self._lanes}

    def through(self) -> int:
        others = [self._thread(lane) for lane in self._lanes[1:]]
        with _stopping(self._progress, alone=not others), _taking_turns(len(others)):
            try:
                for thread in others:
                    thread.start()
                if self._lanes:
                    self._guarded(self._lanes[0], self._retire)
            except BaseException as error:  # no thread to be had, or an interrupt between two lines of this
                self._progress.stop(error)
            _joined([thread for thread in others if thread.ident is not None], self._progress)
        if self._progress.failure is not None:
            raise self._progress.failure.error
        self._retire()
        return self._next

    def _thread(self, lane: Lane) -> threading.Thread:
        context, entered = contextvars.copy_context(), callers()

        def run() -> None:
            with entered():
                context.run(self._guarded, lane, None)

        return threading.Thread(target=run, name=f"steptrace-{lane.name}", daemon=False)

    def _guarded(self, lane: Lane, ended: Callable[[], None] | None) -> None:
        """Run a lane; whatever ends it ends the run."""
        runner = self._executor.lane(lane.name, self._progress, self._first)
        nodes: tuple[ReadyNode, ...] = self._ready[lane.name]
        try:
            runner.turns(nodes, self._horizon, most=lane.most, least=lane.least, ended=ended)
        except BaseException as error:
            self._progress.stop(error)

    def _retire(self) -> None:
        """Let go of the steps that every lane is past, in order, and tell of them."""
        past = self._progress.all_past((lane.name for lane in self._lanes), self._first)
        while self._next <= past:
            spent = self._executor.note_seconds(self._run.frames.at(self._next))
            self._run.end_step(self._next)
            if self._ended is not None:
                self._ended(self._next, spent)
            self._next += 1


def _joined(threads: list[threading.Thread], progress: Progress) -> None:
    """Wait for the end of lanes. An interrupt stops them and is waited out; so is a second one, which says for whom.

    Raises:
      KeyboardInterrupt: a third one came: a lane is in a call that does not return, and is left there.
    """
    came = 0
    while alive := [thread for thread in threads if thread.is_alive()]:
        try:
            alive[0].join()
        except KeyboardInterrupt as error:
            progress.stop(error)
            came += 1
            names = ", ".join(thread.name for thread in alive)
            if came == _PATIENCE:
                error.add_note(f"left behind, in a call that has not returned: {names}")
                raise
            _LOG.warning("waiting for %s to end a call; interrupt again to leave it there", names)


@contextmanager
def _taking_turns(others: int) -> Iterator[None]:
    """Inside, a lane that has come back from a wait gets the interpreter from the others within `_TURN_S`."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, _TURN_S) if others else before)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@contextmanager
def _stopping(progress: Progress, *, alone: bool) -> Iterator[None]:
    """Make the first interrupt stop every lane at the end of its op; a second one is raised where it comes.

    With a lane ``alone`` the first one is raised where it comes too.
    """

    def stop(number: int, frame: Any) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        error = KeyboardInterrupt()
        progress.stop(error)
        if alone:
            raise error

    with handled(stop):
        raise_lost()
        yield
