"""``steptrace.run``: lower a program, bind its parts, run it."""

from __future__ import annotations

import logging
import operator
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import jax

from steptrace.check.schedule import check_schedule
from steptrace.check.validation import check_source
from steptrace.diag.base import a_or_an
from steptrace.diag.binding import BadRunOptionError
from steptrace.diag.checkpoint import NoCheckpointError
from steptrace.ir import Program, verify
from steptrace.lang.definition import ProgramDef, trace
from steptrace.lang.reference import resolve
from steptrace.lang.source import scheduled, source_of
from steptrace.lower import Plan, lower
from steptrace.lower.fallbacks import fitted
from steptrace.passes import Remark, run_pipeline
from steptrace.run.arrays import check_arrays
from steptrace.run.binding import bind_parts
from steptrace.run.borders import checked_weights
from steptrace.run.capabilities import capabilities_of
from steptrace.run.digest import tree_digest
from steptrace.run.drive import Driven, closing, drive
from steptrace.run.executor import STALL_S, Around, Executor
from steptrace.run.interrupts import noted
from steptrace.run.keep import behind, keeping
from steptrace.run.remote.hosting import in_place, noting
from steptrace.run.result import RunResult
from steptrace.run.sanitize import sanitized, unused_effects
from steptrace.run.session import LATCH_S, Session
from steptrace.run.states import check_states
from steptrace.run.store import checkpoints, opened

_LOG = logging.getLogger("steptrace")


def run(
    program: Program | ProgramDef | str,
    bind: Mapping[str, Any],
    *,
    steps: int | None = None,
    seed: int = 0,
    epochs: int | None = None,
    pipeline: str = "",
    against: Program | ProgramDef | str | None = None,
    target: str = "inline",
    out: str | Path | None = None,
    resume: bool = False,
    timed: bool = False,
    sanitize: bool = False,
    stall_s: float = STALL_S,
    stage_latch_s: float = LATCH_S,
    around: Sequence[Around] = (),
    events: str | Path | None = None,
    profile: str | Path | None = None,
) -> RunResult:
    """Run a program with the user's parts.

    Everything that can be checked before step 0 is: the program, the pipeline, the parts, the output folder.

    Args:
      program: a program, its definition, or its name (``"grpo{staleness=1}"``, ``"module:function"``, a ``.st`` file).
      bind: parts by role (``trainer``, ``rollout``, ``reference``, ``reward``, ``prompts``, ``tokenizer``, ``packer``,
        ``advantages``, ``callbacks``, ``tracker``), and implementations of users' ops by name. In place of a part,
        ``steptrace.remote(make_part, ...)`` says how it is made.
      steps: how many steps to have done at the end; None to go on until the data ends.
      seed: of every draw: prompts, sampling. Equal seeds and parts give equal runs.
      epochs: how often the prompts are gone through; None for without end.
      pipeline: passes to apply, in order; "" runs the program as written.
      against: where ``program`` is a schedule, what it was derived from, as ``program`` is named. It is run when it is
        equal to that. None for the built-in program that the schedule names.
      target: what to lower to. Under ``process`` trainer, rollout and reference are bound to ``steptrace.remote(...)``.
        They live in processes of their own from the beginning of the run to its end, or for as long as
        `steptrace.run.remote.hosting.hosted` keeps them.
      out: folder for checkpoints and the list of trained groups; None keeps nothing, and ``save_checkpoint`` is idle.
      resume: go on from the newest checkpoint below ``out``, with the ops behind it in its step. Parts are given
        fresh, as for the first run; those with ``save_checkpoint`` and ``restore_checkpoint`` get their state back.
      timed: wait for the device after each op, so that ``phase_seconds`` are the times of the work. Slower.
      sanitize: look for what users' ops do beside their declaration: see `steptrace.run.sanitize`. Slower.
      stall_s: how long an op may wait for another lane, or for a worker, before the run is given up, in seconds.
      stage_latch_s: a micro-batch that is staged while the device has less than this left to do, in seconds, hides
        nothing; after one such stage, none is made in the rest of the run. 0 stages always.
      around: put around what each op does, the first innermost: see `steptrace.run.executor.Around`. One that has a
        method ``begun(session)`` is told before the first op, one with ``ended(session)`` behind the last.
      events: a file for what every lane and device did, for `steptrace timeline --measured`; see
        `steptrace.run.record.Recorder`. A run that fails, or is interrupted, leaves what it did until then.
      profile: a file for the costs of the ops, medians of the steps behind the first two, for `steptrace plan --costs`.

    Returns:
      The outcome, a `steptrace.run.result.RunResult`: ``records`` of the steps, ``params_digest``, ``calls_digest`` and
      ``trained_groups_digest``, ``phase_ms``, ``remarks``, ``info``.

    Raises:
      SteptraceError: with a code, for whatever the caller can mend. What a part raises comes through as it is, with a
        note of the op, the step and the line.
    """
    if not isinstance(bind, Mapping):
        raise BadRunOptionError(f"bind is {a_or_an(type(bind).__name__)}, not parts by role")
    steps, epochs = _bounds(steps, epochs)
    plan, remarks = scheduled_plan(program, pipeline, target, against)
    _tell(remarks)
    folder, (stall_s, latch_s) = _folder(out, resume, plan), _limits(stall_s, stage_latch_s)
    kept = keeping(events, profile, pipeline, steps, resume=resume)
    around = (*kept, *around)
    with noted(), in_place(plan, bind, stall_s) as there:
        parts = bind_parts(plan, there)
        plan, changed = fitted(plan, plan.target.capabilities | capabilities_of(parts))
        check_arrays(plan, parts.trainer)
        if folder is not None:
            check_states(plan, parts)
        if sanitize:
            parts = sanitized(parts, plan)
        session = Session(plan, parts, seed=_whole("seed", seed), epochs=epochs, out=folder)
        session.remarks += changed
        _check_end(session, steps)
        session.stage_latch_s = latch_s
        waiter = behind(kept, _waiter(parts.trainer) if timed else None)
        executor = Executor(session, waiter, stall_s, (*noting(plan), *around))
        _told(around, "begun", session)
        with (
            nullcontext() if folder is None else opened(folder, resume=resume),
            _telling_of_failures(around, session),
            closing(session),
        ):
            driven = drive(executor, session, steps, resume=resume)
        _told(around, "ended", session)
        if sanitize:
            session.remarks += unused_effects(session.resources, plan, parts)
        return _result(session, executor, driven, pipeline, remarks)


def _limits(stall_s: Any, stage_latch_s: Any) -> tuple[float, float]:
    return _seconds("stall_s", stall_s), _seconds("stage_latch_s", stage_latch_s, 0.0)


def plan_for(
    program: Program | ProgramDef | str,
    pipeline: str = "",
    target: str = "inline",
    against: Program | ProgramDef | str | None = None,
) -> Plan:
    """The plan that `run` carries out for these arguments; fast, so whoever builds costly parts asks for it first.

    Raises:
      SteptraceError: the program, the pipeline or the target is not what it should be.
    """
    return scheduled_plan(program, pipeline, target, against)[0]


def scheduled_plan(
    program: Program | ProgramDef | str,
    pipeline: str = "",
    target: str = "inline",
    against: Program | ProgramDef | str | None = None,
) -> tuple[Plan, tuple[Remark, ...]]:
    """The plan, and what the passes said of the program: see `plan_for`."""
    for name, value in (("pipeline", pipeline), ("target", target)):
        if not isinstance(value, str):
            way_out = {"pipeline": '"" runs the program as written', "target": 'it is "inline" or "process"'}[name]
            said = f"{name}={value!r} is {a_or_an(type(value).__name__)}, not a text"
            raise BadRunOptionError(said, help=way_out)
    given = _traced(program)
    source = _source(given, against)
    if source is not None:
        check_schedule(given, source)  # before the passes, which take it for true
    made = run_pipeline(given, pipeline, source=source)
    schedule = made.schedule
    check_schedule(schedule.program, schedule.source)
    return lower(schedule.program, target, source=schedule.source), made.remarks


def _told(around: Sequence[Around], what: str, session: Session) -> None:
    """Tell those around ops that want to know of the beginning, the end, or the failure of the run."""
    for wrap in around:
        tell = getattr(wrap, what, None)
        if callable(tell):
            tell(session)


@contextmanager
def _telling_of_failures(around: Sequence[Around], session: Session) -> Iterator[None]:
    """Tell those around ops that want to know when what is inside fails, or is interrupted.

    An error of the run comes before one of theirs.
    """
    try:
        yield
    except BaseException:
        for wrap in around:
            with suppress(Exception):
                _told((wrap,), "failed", session)
        raise


def _result(
    session: Session, executor: Executor, driven: Driven, pipeline: str, remarks: tuple[Remark, ...]
) -> RunResult:
    plan, trainer = session.plan, session.parts.trainer
    return RunResult(
        program=plan.program.name,
        pipeline=pipeline,
        target=plan.target.name,
        seed=session.seed,
        steps=driven.steps,
        first_step=driven.first,
        records=tuple(session.records),
        params_digest=tree_digest(checked_weights(trainer.weights())[0]),
        calls_digest=session.calls.settle(),
        trained_groups_digest=session.groups_digest,
        phase_seconds=dict(executor.seconds),
        phase_ms=driven.phase_ms,
        info=_info(trainer),
        remarks=(*(str(remark) for remark in remarks if remark.kind == "missed"), *session.remarks),
    )


def _bounds(steps: int | None, epochs: int | None) -> tuple[int | None, int | None]:
    """The numbers that end a run, as whole numbers."""
    if steps is None and epochs is None:
        raise BadRunOptionError("neither steps nor epochs is given: the run would never end")
    return (
        None if steps is None else _whole("steps", steps, 0),
        None if epochs is None else _whole("epochs", epochs, 1),
    )


def _tell(remarks: tuple[Remark, ...]) -> None:
    """Log what the passes left out."""
    for remark in remarks:
        if remark.kind == "missed":
            _LOG.info("%s left out: %s", remark.pass_name, remark.message)
        elif remark.kind == "found":
            _LOG.info("%s found: %s", remark.pass_name, remark.message)


def _check_end(session: Session, steps: int | None) -> None:
    """Refuse a run that would never end, and one whose last step would be refused."""
    if steps is None and not session.dispatches:
        name = session.plan.program.name
        raise BadRunOptionError(f"steps is not given, and `{name}` draws no prompts whose end ends it")
    session.refuse_partial(steps)


def _source(program: Program, against: Program | ProgramDef | str | None) -> Program | None:
    """What a schedule was derived from; None for a program that is its own source."""
    if against is None:
        if scheduled(program):
            return source_of(program)
        verify(program, own_order=True)
        return None
    source = _traced(against)
    check_source(source)
    return source


def _traced(program: Program | ProgramDef | str) -> Program:
    if isinstance(program, str):
        return resolve(program)
    return program if isinstance(program, Program) else trace(program)


def _whole(name: str, value: Any, least: int | None = None) -> int:
    """An option that is a whole number."""
    try:
        number = operator.index(value)
    except TypeError:
        raise BadRunOptionError(f"{name}={value!r} is not a whole number") from None
    if least is not None and number < least:
        raise BadRunOptionError(f"{name}={number}, and at least {least} is needed")
    return number


def _seconds(name: str, value: Any, least: float | None = None) -> float:
    """A limit of time: above 0, or from ``least`` on."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not (value > 0 if least is None else value >= least):
        bound = "above 0" if least is None else f"from {least:g} on"
        raise BadRunOptionError(f"{name}={value!r} is not a number of seconds {bound}")
    return float(value)


def _folder(out: str | Path | None, resume: bool, plan: Plan) -> Path | None:
    """The output folder; to resume, there is a checkpoint below it."""
    if out is None:
        if resume:
            raise BadRunOptionError("resume=True needs out, the folder of the run to go on with")
        return None
    if not isinstance(out, str | os.PathLike) or "\0" in str(out):
        raise BadRunOptionError(f"out={out!r} is not the path of a folder")
    folder = Path(out)
    if resume and not checkpoints(folder):
        raise NoCheckpointError(
            f"there is no checkpoint below {folder}", loc=plan.base.program.loc, help=_without_checkpoint(plan)
        )
    return folder


def _without_checkpoint(plan: Plan) -> str:
    """The way out where there is nothing to resume."""
    if "trainer.save_checkpoint" in plan.verbs():
        return "run without resume, or name the folder that the first run was given as out"
    name = plan.base.program.name
    return f"`{name}` keeps none: `with step.every(10): step.save_checkpoint()`, and a run without resume first"


def _waiter(trainer: Any) -> Callable[[], None]:
    """How to wait for the devices: as the trainer says, and for every array that this process holds."""
    wait = getattr(trainer, "wait_for_device", None)
    if not callable(wait):
        return _wait_for_arrays

    def both() -> None:
        wait()
        _wait_for_arrays()

    return both


def _wait_for_arrays() -> None:
    """Wait for every array that this process holds; another lane may give one away in the meantime."""
    for array in jax.live_arrays():
        with suppress(RuntimeError):
            array.block_until_ready()


def _info(trainer: Any) -> dict[str, Any]:
    """What the trainer says of itself, when it says something."""
    info = getattr(trainer, "info", None)
    said = info() if callable(info) else {}
    return dict(said) if isinstance(said, Mapping) else {}
