"""The loop over steps: from the beginning or a checkpoint, to the number of steps asked for or the end of the data."""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from statistics import median

from steptrace.run.executor import Executor
from steptrace.run.manifest import restore_run, save_run
from steptrace.run.session import Session

_RECENT = 512
_LOG = logging.getLogger("steptrace")


@dataclass(frozen=True, slots=True)
class Driven:
    """What was driven.

    Attributes:
      first: the step that was begun with.
      steps: the steps that are done, those before ``first`` included.
      phase_ms: median milliseconds a step of each kind of op, over the last steps.
    """

    first: int
    steps: int
    phase_ms: dict[str, float]


def drive(executor: Executor, session: Session, steps: int | None, *, resume: bool) -> Driven:
    """Run steps until ``steps`` are done, or the data ends.

    A run with checkpoints leaves one behind its last step, so that resuming it with more steps repeats nothing.
    A tracker that has a method ``phases(step, seconds)`` is told the time of each kind of op after each step.
    """
    watching = [tracker.phases for tracker in session.parts.trackers if hasattr(tracker, "phases")]
    recent: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_RECENT))
    first = _begun(executor, session, resume)

    def ended(step: int, spent: Mapping[str, float]) -> None:
        for kind, seconds in spent.items():
            recent[kind].append(seconds * 1e3)
        for tell in watching:
            tell(step, dict(spent))

    step = executor.steps(first, steps, ended)
    if resume and step == first:
        session.remarks.append(f"nothing was left to run: {session.out} has {first} steps, and none is to follow")
        _LOG.warning("%s", session.remarks[-1])
    if step and session.saved != (step - 1, "") and "trainer.save_checkpoint" in session.plan.verbs():
        save_run(session, step - 1)
    executor.epilogue(step - 1)
    return Driven(first, step, {kind: median(values) for kind, values in recent.items()})


def _begun(executor: Executor, session: Session, resume: bool) -> int:
    """Come to where the run begins: before step 0, or behind the newest checkpoint and the rest of its step."""
    if not resume:
        executor.prologue()
        return 0
    step, behind = restore_run(session)
    if behind:
        executor.rest(step, behind)
    return step + 1


@contextmanager
def closing(session: Session) -> Iterator[None]:
    """At the end, whatever happens, drop the versions that the rollout was given, and close every tracker.

    So the same parts can run again. An error of the run comes before one of its end.
    """
    endings = [session.drop_saves, session.board.clear, *(tracker.close for tracker in session.parts.trackers)]
    try:
        yield
    except BaseException:
        for ending in endings:
            with suppress(Exception):
                ending()
        raise
    failures = [error for ending in endings if (error := _failure(ending)) is not None]
    if failures:
        raise failures[0]


def _failure(ending: Callable[[], None]) -> Exception | None:
    """What an ending raised, if it did."""
    try:
        ending()
    except Exception as error:
        error.add_note(f"in {getattr(ending, '__qualname__', ending)}, after the run")
        return error
    return None
