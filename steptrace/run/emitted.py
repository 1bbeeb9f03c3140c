"""What an emitted loop stands on: ops by id, the values of each step, and waits between lanes.

`steptrace dump PROGRAM --emit=py` prints a plan as Python that runs on this module, with one function for each lane.
Which op runs when is in that text alone: nothing here looks at the order, the lanes, the conditions or the waits of
the plan. What an op does, and how it is carried out by the parts at hand, is as in any run.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from itertools import count
from pathlib import Path
from typing import Any

from steptrace.ir.parser import parse_program
from steptrace.lower import lower
from steptrace.run.binding import bind_parts
from steptrace.run.borders import checked_weights
from steptrace.run.contexts import callers
from steptrace.run.digest import tree_digest
from steptrace.run.drive import closing
from steptrace.run.emitted_lanes import WHOLE, Meeting, StoppedLaneError
from steptrace.run.frames import Frame
from steptrace.run.horizon import Horizon
from steptrace.run.instance import At
from steptrace.run.lane import attribute
from steptrace.run.manifest import save_run
from steptrace.run.remote.hosting import in_place, noting
from steptrace.run.result import RunResult
from steptrace.run.session import LATCH_S, Session
from steptrace.run.store import opened as folder_opened
from steptrace.run.sync_rounds import with_rounds
from steptrace.run.verbs import PART_VERBS, VERBS

STALL_S = 3600.0
"""How long a lane waits for another one before the run is given up, in seconds."""


@contextmanager
def opened(
    schedule: str,
    source: str,
    parts: Mapping[str, Any],
    steps: int | None = None,
    *,
    seed: int = 0,
    epochs: int | None = None,
    out: str | Path | None = None,
    stall_s: float = STALL_S,
    stage_latch_s: float = LATCH_S,
    target: str = "inline",
) -> Iterator[Loop]:
    """A run for an emitted loop to carry out, from step 0 on; at the end what it holds is let go.

    Args:
      schedule, source: texts of the schedule and of what it was derived from; the ops have their attributes from them.
      parts, steps, seed, epochs, out, stall_s, stage_latch_s, target: as `steptrace.run` takes them.
    """
    made, origin = parse_program(schedule, "<schedule>"), parse_program(source, "<source>")
    plan = lower(made, target, source=origin)
    folder = None if out is None else Path(out)
    with in_place(plan, parts, stall_s) as there:
        session = Session(plan, bind_parts(plan, there), seed=seed, epochs=epochs, out=folder)
        session.stage_latch_s = stage_latch_s
        session.refuse_partial(steps)
        loop = Loop(session, steps, stall_s)
        with nullcontext() if folder is None else folder_opened(folder, resume=False), closing(session):
            yield loop
        loop.result()  # while the parts are there


class Values:
    """Values of a step by name; None for what is not made."""

    __slots__ = ("_frame", "_slots")

    def __init__(self, frame: Frame, slots: Mapping[str, int]) -> None:
        self._frame, self._slots = frame, slots

    def __getitem__(self, name: str) -> Any:
        return self._frame.values[self._slots[name]]

    def __setitem__(self, name: str, value: Any) -> None:
        self._frame.values[self._slots[name]] = value


class Round:
    """Values of one micro-batch by name; None for what is not made."""

    __slots__ = ("_slots", "_values")

    def __init__(self, values: dict[int, Any], slots: Mapping[str, int]) -> None:
        self._values, self._slots = values, slots

    def __getitem__(self, name: str) -> Any:
        return self._values.get(self._slots[name])

    def __setitem__(self, name: str, value: Any) -> None:
        self._values[self._slots[name]] = value


class Rounds:
    """The rounds of a loop over micro-batches in one step, for all lanes that have a part in it."""

    def __init__(self, frame: Frame, loop: str, slots: Mapping[str, int]) -> None:
        self._frame, self._loop, self._slots = frame, loop, slots

    def open(self, micro: int) -> bool:
        """Whether there is such a round, as far as is known."""
        return self._frame.counts.get(self._loop, micro + 1) > micro

    def over(self, turn: int) -> bool:
        """Whether no round is left behind a turn."""
        return self._frame.counts.get(self._loop, turn + 2) <= turn + 1

    def end(self, micro: int) -> None:
        """There are so many rounds."""
        self._frame.counts[self._loop] = micro

    def new(self, micro: int) -> Round:
        """The values of a round that begins."""
        return Round(self._frame.rounds.setdefault(micro, {}), self._slots)

    def __getitem__(self, micro: int) -> Round:
        return Round(self._frame.rounds[micro], self._slots)

    def drop(self, micro: int) -> None:
        """Let go of a round."""
        self._frame.rounds.pop(micro, None)


class Loop:
    """A run whose order an emitted loop decides.

    A failure in a lane ends every other one at its next turn or wait, and is raised by `lanes`.

    Attributes:
      step: -1 until the steps are run, then the last step.
      before, scratch: values of what runs once before and behind the steps.
      kept: values that are made before step 0 and last.
    """

    def __init__(self, session: Session, steps: int | None, stall_s: float) -> None:
        self._run = session
        self._slots = session.plan.slots
        self._ops = {op.id: op for op in session.plan.program.ops()}
        self._rules: dict[str, Callable[..., Any]] = with_rounds({**VERBS, **PART_VERBS, **session.parts.ops})
        for wrap in noting(session.plan):
            self._rules = {kind: wrap(rule) for kind, rule in self._rules.items()}
        self._made: RunResult | None = None
        self._horizon = Horizon(session, 0, steps)
        session.behind = self._horizon.behind
        self._meeting = Meeting(stall_s)
        session.stopped = lambda step: self._meeting.failure is not None
        self._lanes = 0
        self._next = 0
        self._caller = threading.get_ident()
        self.step = -1
        self.before = self.kept = Values(session.frames.before, self._slots)
        self.scratch = Values(Frame(-1, len(self._slots)), self._slots)

    def call(self, id: str, step: int, *args: Any, at: tuple[int, ...] = (), of: int | None = None) -> Any:
        """Run an op for a step.

        Args:
          id: its id.
          step: the step.
          *args: its operands.
          at: how many rounds each loop around it has made before, outermost first.
          of: how many rounds the innermost loop makes, None when that is a run-time fact.

        Returns:
          Its result; several as a tuple; None from the head of a loop that has no further item.
        """
        where = At(self._ops[id], step, at, of)
        try:
            made = self._rules[where.op.kind](self._run, where, *args)
        except Exception as error:
            attribute(error, where)
            raise
        return made[0] if made is not None and len(made) == 1 else made

    def turns(self, lane: str, *, most: int, least: int) -> Iterator[int]:
        """The turns of a lane, whose ops run between ``least`` and ``most`` steps ahead, to the end of the steps."""
        for turn in count(-most):
            settled = turn + least
            if settled >= 0 and not self.begun(settled):
                return
            yield turn
            if settled >= 0:
                self._meeting.done(lane, settled)
            if threading.get_ident() == self._caller:
                self._retire()

    def begun(self, step: int) -> bool:
        """Whether there is such a step."""
        self._meeting.check()
        return step >= 0 and self._horizon.exists(step)

    def values(self, step: int) -> Values:
        """The values of a step."""
        return Values(self._run.frames.at(step), self._slots)

    def rounds(self, loop: str, step: int) -> Rounds:
        """The rounds of a loop in a step."""
        return Rounds(self._run.frames.at(step), loop, self._slots)

    def carried(self, name: str, step: int) -> float:
        """What a step reads of a value that is carried from step to step."""
        return self._run.frames.carry(name, step)

    def has(self, capability: str) -> bool:
        """Whether the parts or the target can do something."""
        return capability in self._run.capabilities

    def wait(self, id: str, step: int, micro: float = WHOLE) -> None:
        """Wait until another lane is past an op or a loop of a step; nothing is waited for before step 0."""
        if step >= 0:
            self._meeting.wait(id, (step, micro))

    def signal(self, id: str, step: int, micro: float = WHOLE) -> None:
        """Tell other lanes that this one is past an op or a loop of a step."""
        self._meeting.signal(id, (step, micro))

    def lanes(self, *lanes: Callable[[Loop], None]) -> None:
        """Run the lanes, the first one here, each other in a thread, until all have come to their end.

        Behind the last step a run with checkpoints leaves one, as any run does.

        Raises:
          whatever the first op to fail has raised.
        """
        self._lanes = len(lanes)
        others = [self._thread(lane) for lane in lanes[1:]]
        try:
            for thread in others:
                thread.start()
            if lanes:
                self._guarded(lanes[0])
        except BaseException as error:  # no thread to be had, or an interrupt between two lines of this
            self._meeting.fail(error)
        for thread in others:
            self._join(thread)
        if self._meeting.failure is not None:
            raise self._meeting.failure
        self._retire()
        self.step = self._next - 1
        run = self._run
        if self._next and run.saved != (self.step, "") and "trainer.save_checkpoint" in run.plan.verbs():
            save_run(run, self.step)

    def result(self) -> RunResult:
        """What the run has made."""
        self._made = self._made or self._result()
        return self._made

    def _result(self) -> RunResult:
        run, trainer = self._run, self._run.parts.trainer
        return RunResult(
            program=run.plan.program.name,
            pipeline="",
            target=run.plan.target.name,
            seed=run.seed,
            steps=self._next,
            first_step=0,
            records=tuple(run.records),
            params_digest=tree_digest(checked_weights(trainer.weights())[0]),
            calls_digest=run.calls.settle(),
            trained_groups_digest=run.groups_digest,
            phase_seconds={},
            phase_ms={},
            remarks=tuple(run.remarks),
        )

    def _thread(self, lane: Callable[[Loop], None]) -> threading.Thread:
        context, entered = contextvars.copy_context(), callers()

        def run() -> None:
            with entered():
                context.run(self._guarded, lane)

        return threading.Thread(target=run, name=f"steptrace-{lane.__name__}")

    def _join(self, thread: threading.Thread) -> None:
        """Wait for the end of a lane; an interrupt stops every lane at its next turn or wait, and is waited out."""
        while thread.is_alive():
            try:
                thread.join()
            except KeyboardInterrupt as error:
                if self._meeting.failure is not None:
                    raise
                self._meeting.fail(error)

    def _guarded(self, lane: Callable[[Loop], None]) -> None:
        """Run a lane; whatever ends it ends the others."""
        try:
            lane(self)
        except StoppedLaneError:
            pass
        except BaseException as error:
            self._meeting.fail(error)

    def _retire(self) -> None:
        """Let go of the steps that every lane is past."""
        past = self._meeting.past(self._lanes)
        while self._next <= past:
            self._run.end_step(self._next)
            self._next += 1
