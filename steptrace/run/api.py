"""``steptrace.run``: lower a program, bind its parts, run it."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import jax

from steptrace.diag.binding import BadRunOptionError, UnknownPassError
from steptrace.diag.checkpoint import OutInUseError, UnwritableOutError
from steptrace.ir import Program
from steptrace.lang.definition import ProgramDef
from steptrace.lang.reference import resolve
from steptrace.lower import Plan, lower
from steptrace.run.binding import bind_parts
from steptrace.run.digest import tree_digest
from steptrace.run.executor import Executor
from steptrace.run.manifest import checkpoints, forget_trained, restore_run
from steptrace.run.result import RunResult
from steptrace.run.session import Session

_RECENT = 512


def run(
    program: Program | ProgramDef | str,
    bind: Mapping[str, Any],
    *,
    steps: int | None = None,
    seed: int = 0,
    epochs: int | None = None,
    pipeline: str = "",
    target: str = "inline",
    out: str | Path | None = None,
    resume: bool = False,
    timed: bool = False,
) -> RunResult:
    """Run a program with the user's parts.

    Everything that can be checked before step 0 is: the program, the pipeline, the parts, the output folder.

    Args:
      program: a program, its definition, or its name (``"grpo{staleness=1}"``, ``"module:function"``, a ``.st`` file).
      bind: parts by role (``trainer``, ``rollout``, ``reference``, ``reward``, ``prompts``, ``tokenizer``, ``packer``,
        ``advantages``, ``callbacks``, ``tracker``), and implementations of users' ops by name.
      steps: how many steps to have done at the end; None to go on until the data ends.
      seed: of every draw: prompts, sampling. Equal seeds and parts give equal runs.
      epochs: how often the prompts are gone through; None for without end.
      pipeline: passes to apply, in order; "" runs the program as written.
      target: what to lower to.
      out: folder for checkpoints and the list of trained groups; None keeps nothing, and ``save_checkpoint`` is idle.
      resume: go on from the newest checkpoint below ``out``.
      timed: wait for the device after each op, so that ``phase_seconds`` are the times of the work. Slower.

    Returns:
      The outcome.

    Raises:
      SteptraceError: with a code, for whatever the caller can mend. What a part raises comes through as it is, with a
        note of the op, the step and the line.
    """
    if steps is not None and steps < 0:
        raise BadRunOptionError(f"steps={steps} is negative")
    if steps is None and epochs is None:
        raise BadRunOptionError("neither steps nor epochs is given: the run would never end")
    plan = plan_for(program, pipeline, target)
    parts = bind_parts(plan, bind)
    session = Session(plan, parts, seed=seed, epochs=epochs, out=_checked_out(out, resume))
    executor = Executor(session, _waiter(parts.trainer) if timed else None)
    if session.out is not None and not resume:
        forget_trained(session.out)
    first = restore_run(session) if resume else 0
    try:
        done, medians = _drive(executor, parts.trackers, first, steps)
    finally:
        for tracker in parts.trackers:
            tracker.close()
    weights, _ = parts.trainer.weights()
    info = getattr(parts.trainer, "info", None)
    return RunResult(
        program=plan.program.name,
        pipeline=pipeline,
        target=target,
        seed=seed,
        steps=done,
        first_step=first,
        records=tuple(session.records),
        params_digest=tree_digest(weights),
        calls_digest=session.calls.settle(),
        trained_groups_digest=session.groups_digest,
        phase_seconds=dict(executor.seconds),
        phase_ms=medians,
        info=dict(info()) if callable(info) else {},
    )


def plan_for(program: Program | ProgramDef | str, pipeline: str = "", target: str = "inline") -> Plan:
    """The plan that `run` carries out for these arguments; fast, so whoever builds costly parts asks for it first.

    Raises:
      SteptraceError: the program, the pipeline or the target is not what it should be.
    """
    if pipeline:
        raise UnknownPassError(f"there is no pass `{pipeline}`", help="an empty pipeline runs the program as written")
    return lower(_traced(program), target)


def _drive(
    executor: Executor, trackers: tuple[Any, ...], first: int, steps: int | None
) -> tuple[int, dict[str, float]]:
    """Run from step ``first``; returns the steps done and the median milliseconds a step of each kind.

    A tracker that has a method ``phases(step, seconds)`` is told the time of each kind of op after each step.
    """
    watching = [tracker.phases for tracker in trackers if hasattr(tracker, "phases")]
    recent: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_RECENT))
    executor.prologue(first - 1)
    step = first
    while (steps is None or step < steps) and executor.step(step):
        for kind, seconds in executor.step_seconds.items():
            recent[kind].append(seconds * 1e3)
        for tell in watching:
            tell(step, dict(executor.step_seconds))
        step += 1
    executor.epilogue(step - 1)
    return step, {kind: median(values) for kind, values in recent.items()}


def _traced(program: Program | ProgramDef | str) -> Program:
    if isinstance(program, str):
        return resolve(program)
    return program.trace() if isinstance(program, ProgramDef) else program


def _checked_out(out: str | Path | None, resume: bool) -> Path | None:
    """The output folder, made and tried; raises when it cannot be written or holds another run."""
    if out is None:
        return None
    folder = Path(out)
    try:
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        probe = folder / "checkpoints" / ".probe"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise UnwritableOutError(f"the output folder {folder} cannot be written: {error.strerror or error}") from error
    if not resume and checkpoints(folder):
        raise OutInUseError(f"{folder} holds the checkpoints of a run", help="add --resume, or choose another folder")
    return folder


def _waiter(trainer: Any) -> Callable[[], None]:
    """How to wait for the devices: as the trainer says, or for every array that this process holds."""
    wait = getattr(trainer, "wait_for_device", None)
    return wait if callable(wait) else lambda: jax.block_until_ready(jax.live_arrays())
