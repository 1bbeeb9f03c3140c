"""Runs passes: each on what the one before left, verified in between."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from steptrace.check.dead import dead_ops, without
from steptrace.check.schedule import check_schedule
from steptrace.diag.base import Note, SteptraceError
from steptrace.diag.motion import BrokenPassError, PassCrashError
from steptrace.ir.printer import print_program
from steptrace.ir.program import Program
from steptrace.ir.verify import verify
from steptrace.motion import Schedule
from steptrace.passes.base import Partial, Pass, Telling, text_of
from steptrace.passes.remark import Remark, applied, found, missed


@dataclass(frozen=True, slots=True)
class PassRun:
    """One pass of a pipeline, after it ran.

    Attributes:
      text: the pass with its options, ``take-ahead{depth=1}``.
      program: what it left.
      remarks: what it did and did not.
      seconds: how long it took, in seconds.
      verify_seconds: how long its verification took, in seconds.
    """

    text: str
    program: Program
    remarks: tuple[Remark, ...]
    seconds: float
    verify_seconds: float


@dataclass(frozen=True, slots=True)
class PipelineResult:
    """What a pipeline made of a program.

    Attributes:
      schedule: the schedule, with its trail.
      runs: the passes, in order.
    """

    schedule: Schedule
    runs: tuple[PassRun, ...]

    @property
    def remarks(self) -> tuple[Remark, ...]:
        """All remarks, in order."""
        return tuple(remark for run in self.runs for remark in run.remarks)

    @property
    def seconds(self) -> tuple[tuple[str, float], ...]:
        """Seconds that each pass took, its verification aside."""
        return tuple((run.text, run.seconds) for run in self.runs)

    @property
    def dumps(self) -> tuple[tuple[str, str], ...]:
        """The program as text after each pass."""
        return tuple((run.text, print_program(run.program)) for run in self.runs)


def run_passes(schedule: Schedule, passes: Sequence[Pass]) -> PipelineResult:
    """Applies passes one after the other.

    Raises:
      BrokenPassError: a pass left a schedule that is not equal to its source.
      PassCrashError: a pass failed otherwise. Both carry a reproducer (`reproducer_of`).
    """
    runs = []
    for pass_ in passes:
        schedule, run = _run(schedule, pass_)
        runs.append(run)
    return PipelineResult(schedule, tuple(runs))


def _run(schedule: Schedule, pass_: Pass) -> tuple[Schedule, PassRun]:
    start = time.perf_counter()
    try:
        after, told = pass_.told(schedule) if isinstance(pass_, Telling) else (pass_.run(schedule), "")
        said = (found(pass_.name, told),) if told else ()
        remarks = (*said, *_left(schedule, pass_), *applied(pass_.name, schedule, after))
    except SteptraceError as error:
        after, remarks = schedule, (missed(pass_.name, error),)
    except Exception as error:
        raise _crashed(schedule, pass_, error) from error
    ran = time.perf_counter()
    if after is not schedule:
        _verify(schedule, after, pass_)
        early = _stays_too_early(after) if after.program.kinds or getattr(pass_, "by_hand", False) else None
        if early is not None:
            after, remarks = schedule, (missed(pass_.name, early),)
    verified = time.perf_counter()
    return after, PassRun(text_of(pass_), after.program, remarks, ran - start, verified - ran)


def _left(schedule: Schedule, pass_: Pass) -> Iterator[Remark]:
    """Remarks of what a pass that was applied left where it is."""
    if isinstance(pass_, Partial):
        yield from (missed(pass_.name, error) for error in pass_.left(schedule))


def _verify(before: Schedule, after: Schedule, pass_: Pass) -> None:
    """Refuses what a pass left, if it is no schedule of the source; nothing that the pass says of it is believed."""
    try:
        verify(after.program)
        check_schedule(after.program, _source(before, after))
    except SteptraceError as error:
        notes = (Note(f"{error.code}: {error.message}", error.loc), *error.notes)
        message = f"`{pass_.name}` left a schedule that is not equal to its source"
        broken = BrokenPassError(message, loc=error.loc, notes=notes, help="leave the pass out, and mend it")
        raise _with_reproducer(broken, before, pass_) from error


def _stays_too_early(schedule: Schedule) -> SteptraceError | None:
    """The refusal of a schedule in which what an op of the user's leaves would stay though the source fails before it.

    The rows of the built-in ops have edges for all that stays but a callback that declares what it touches, and only a
    place by hand parts that from the log. So a step without ops of the user's is asked behind such a pass alone.
    """
    from steptrace.check.validation.early import stays_too_early  # only where there are such ops: it takes its time

    found = stays_too_early(schedule.program, schedule.source)
    return found.raised() if found is not None else None


def _source(before: Schedule, after: Schedule) -> Program:
    """The source as a pass may have changed it: a relaxed contract, ops that nobody would miss left out."""
    source, steps = before.source, after.trail[len(before.trail) :]
    if any(step.motion == "relax" for step in steps):
        source = replace(source, contract=after.source.contract)
    gone = {op.id for op in source.ops()} - {op.id for op in after.source.ops()}
    if any(step.motion == "drop" for step in steps) and gone <= set(dead_ops(source)):
        source = without(source, tuple(sorted(gone)))
    return source


def _crashed(schedule: Schedule, pass_: Pass, error: Exception) -> SteptraceError:
    last = traceback.extract_tb(error.__traceback__)[-1]
    message = f"`{pass_.name}` failed: {type(error).__name__}: {error}"
    note = Note(f"in {last.name}, {last.filename.rpartition('/')[2]}:{last.lineno}")
    crash = PassCrashError(message, loc=schedule.program.loc, notes=(note,), help="leave the pass out, and mend it")
    return _with_reproducer(crash, schedule, pass_)


def _with_reproducer(error: SteptraceError, schedule: Schedule, pass_: Pass) -> SteptraceError:
    error.add_note(reproducer(schedule.program, text_of(pass_)))
    return error


_MARK = "# a pass fails on this program:"


def reproducer(program: Program, pipeline: str) -> str:
    """The content of a file that shows a failure again: the program as text, the pipeline in its first line."""
    return f"{_MARK} -p {pipeline}\n{print_program(program)}"


def reproducer_of(error: BaseException) -> str:
    """The reproducer that an error of `run_passes` carries; ``""`` for other errors."""
    return next((note for note in getattr(error, "__notes__", ()) if note.startswith(_MARK)), "")
