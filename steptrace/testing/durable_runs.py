"""Small runs into a folder, by which a run that was cut short and resumed is compared with one that was left alone.

The parts are those of ``hash_parts``, the folder and what is in it are real. Two things are not: weights beside the
trainer's are pickled instead of written by Orbax, and keys are drawn without a device, so that a process may be forked
at any time. And a schedule is checked and lowered once, not for each run. ``quickly`` puts that in: a run then takes
some hundredths of a second.
"""

from __future__ import annotations

import json
import pickle
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

import steptrace
from steptrace.ir import Program
from steptrace.lang.records import MicroBatch
from steptrace.lang.reference import resolve
from steptrace.lower import Plan, lower
from steptrace.lower.fallbacks import fitted
from steptrace.passes import PIPELINES, run_pipeline
from steptrace.run import api, dispatching, manifest
from steptrace.run.api import scheduled_plan
from steptrace.run.binding import bind_parts
from steptrace.run.capabilities import capabilities_of
from steptrace.run.executor import Around, Rule
from steptrace.run.instance import At
from steptrace.run.result import RunResult
from steptrace.run.session import Session
from steptrace.run.store import checkpoints
from steptrace.testing.hash_parts import (
    HalfReference,
    HashRollout,
    SlowCloser,
    StageLoser,
    StagingTrainer,
    hash_parts,
)

STEPS = 5
"""How many steps a run has."""

Pace = Literal["as it comes", "packed in time", "stage lost", "packed late"]
"""How the first micro-batch of a step comes to the trainer: by speed; shipped ahead; called ahead; not ahead at all."""

_PATIENCE_S = 0.5
_GRPO = "grpo{{prompts=3, samples=2, staleness={staleness}, save_every=2{more}}}"
_NOW, _DEEP = _GRPO.format(staleness=1, more=""), _GRPO.format(staleness=2, more="")
_LATE = _GRPO.format(staleness=1, more=', saves="may_fail_late"')


@dataclass(frozen=True)
class Arm:
    """A program under a pipeline.

    Attributes:
      name: what it is called in tables.
      program: the program.
      pipeline: the pipeline, "" for the order of the program.
    """

    name: str
    program: str
    pipeline: str = ""

    @cached_property
    def source(self) -> Program:
        """The program as written."""
        return resolve(self.program)

    @cached_property
    def schedule(self) -> Program:
        """The program as it is run."""
        return run_pipeline(self.source, self.pipeline).schedule.program if self.pipeline else self.source

    @cached_property
    def plan(self) -> Plan:
        """The plan that a run carries out, fitted to the trainer."""
        plan = scheduled_plan(self.schedule, against=self.source)[0] if self.pipeline else lower(self.source)
        parts = bind_parts(plan, hash_parts())
        return fitted(plan, plan.target.capabilities | capabilities_of(parts))[0]


ARMS = (
    Arm("program order", _NOW),
    *(Arm(name, _NOW, name) for name in PIPELINES),
    Arm("streamed", _NOW, "stream-micro-batches,pipelined-boundary"),
    Arm("program order, late saves", _LATE),
    Arm("async-everything, late saves", _LATE, "async-everything"),
    Arm("program order, two ahead", _DEEP),
    Arm("take-ahead{depth=2}", _DEEP, "take-ahead{depth=2}"),
)
"""GRPO in program order, under each named pipeline, and under what the named pipelines leave out."""

FAULTY = tuple(arm for arm in ARMS if arm.name not in ("program order, late saves", "program order, two ahead"))
"""Those whose ops differ."""


@dataclass(frozen=True)
class Left:
    """What a run leaves.

    Attributes:
      params, calls, groups: digests of the parameters, of the trainer's calls, of the trained groups.
      trained: the list of trained groups in the folder, by step.
      logged: the steps of the log.
    """

    params: str
    calls: str
    groups: str
    trained: tuple[Any, ...]
    logged: tuple[int, ...]

    def differs(self, other: Left) -> str:
        """In what it differs from another one, "" for in nothing."""
        return ", ".join(name for name in self.__dataclass_fields__ if getattr(self, name) != getattr(other, name))


class Book:
    """A callback and a tracker that writes down the steps it is told of; a resumed run takes it back."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.ended: list[int] = []

    def on_step_end(self, step: int, metrics: Mapping[str, float]) -> None:
        """Note the end of a step."""
        self.ended.append(step)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Note a record."""
        with self._path.open("a") as file:
            file.write(f"{step}\n")

    def rewind(self, step: int, last_record: Mapping[str, float] | None) -> None:
        """Go back to the record that was the last one when the checkpoint was made."""
        kept = [other for other in self.steps() if other <= step]
        self._path.write_text("".join(f"{other}\n" for other in kept))

    def close(self) -> None:
        """Nothing is open."""

    def steps(self) -> tuple[int, ...]:
        """The steps in the log."""
        return tuple(map(int, self._path.read_text().split())) if self._path.exists() else ()


class _Paced(StagingTrainer):
    """Lets the first micro-batch of a step be packed before the last call of the step before ends.

    Args:
      loses: whether every stage is lost.
    """

    def __init__(self, *, loses: bool) -> None:
        super().__init__()
        self.reference = _Paces(self)
        self.packed: set[int] = set()
        self._loses = loses

    def fwd_bwd(self, micro_batch: MicroBatch, **how: bool) -> dict[str, bool] | None:
        following = micro_batch.step + 1
        if micro_batch.last and following < STEPS:
            _patiently(lambda: following in self.packed)
            time.sleep(0.01)  # from the reference's answer to the value being there
        return super().fwd_bwd(micro_batch, **how)

    def stage_fwd_bwd(self, micro_batch: MicroBatch) -> int:
        if self._loses:
            raise ConnectionError("the link for stages is down")
        return super().stage_fwd_bwd(micro_batch)


class _Paces(HalfReference):
    """The reference beside that trainer: tells it what is packed."""

    def __init__(self, trainer: _Paced) -> None:
        self._trainer = trainer

    def logps(self, micro_batch: MicroBatch) -> np.ndarray:
        made = super().logps(micro_batch)
        self._trainer.packed.add(micro_batch.step)
        return made


class _Late:
    """Goes around the ops of a run: nothing of a step's first micro-batch is there before the step before has ended."""

    def __init__(self) -> None:
        self._ended = -1

    def __call__(self, rule: Rule) -> Rule:
        def run(session: Session, at: At, *operands: Any) -> Any:
            if at.op.kind == "ref_logps" and not at.item:
                _patiently(lambda: self._ended >= at.step - 1)
            made = rule(session, at, *operands)
            if at.op.kind == "on_step_end":
                self._ended = at.step
            return made

        return run


class _InTime:
    """Goes around the ops of a run: behind a step's last training call the next step's first micro-batch is there.

    A trainer in a process of its own is not waited for, however long it takes.
    """

    def __init__(self) -> None:
        self._packed = -1

    def __call__(self, rule: Rule) -> Rule:
        def run(session: Session, at: At, *operands: Any) -> Any:
            made = rule(session, at, *operands)
            if at.op.kind == "ref_logps" and not at.item:
                self._packed = at.step
            elif at.op.kind.startswith("fwd_bwd") and getattr(operands[0], "last", True):
                _patiently(lambda: self._packed > at.step)
            return made

        return run


def _patiently(condition: Callable[[], bool]) -> None:
    """Wait for a while until something holds."""
    end = time.monotonic() + _PATIENCE_S
    while not condition() and time.monotonic() < end:
        time.sleep(0.001)


def run_at_pace(
    out: Path, arm: Arm, pace: Pace, target: str, around: Around, **more: Any
) -> tuple[Left, tuple[str, ...]]:
    """Run an arm in a folder as `run_into`, with fresh parts that let micro-batches come to the trainer in one way.

    Args:
      out: the folder.
      arm: the arm.
      pace: the way.
      target: where the parts are.
      around: what goes around the ops.
      more: as for `run_into`.
    """
    bound = paced_parts(pace) if target == "inline" else remote_parts(pace)
    paced: list[Around] = [_Late()] if pace == "packed late" else []
    if target == "process" and pace in ("packed in time", "stage lost"):
        paced = [_InTime()]
    return run_into(out, arm, bound=bound, around=[around, *paced], target=target, **more)


def paced_parts(pace: Pace = "as it comes") -> dict[str, Any]:
    """Parts that see to it that the first micro-batch of a step is packed in time, where that is asked for."""
    if pace not in ("packed in time", "stage lost"):
        return hash_parts()
    trainer = _Paced(loses=pace == "stage lost")
    return hash_parts(trainer=trainer, reference=trainer.reference)


def remote_parts(pace: Pace = "as it comes") -> dict[str, Any]:
    """The same with trainer, rollout and reference in processes of their own."""
    trainer = {"packed in time": SlowCloser, "stage lost": StageLoser}.get(pace, StagingTrainer)
    there = {"trainer": trainer, "rollout": HashRollout, "reference": HalfReference}
    return hash_parts(**{role: steptrace.remote(made) for role, made in there.items()})


def run_into(
    out: Path,
    arm: Arm,
    *,
    bound: Mapping[str, Any] | None = None,
    around: Sequence[Around] = (),
    stall_s: float = 60.0,
    book: Book | None = None,
    target: str = "inline",
) -> tuple[Left, tuple[str, ...]]:
    """Run an arm in a folder, from its newest checkpoint on if there is one; gives what it leaves, and its remarks."""
    resume = bool(checkpoints(out))
    if not resume:
        (out / "log").unlink(missing_ok=True)
    book, bound = book or Book(out / "log"), dict(bound or hash_parts())
    made = steptrace.run(
        arm.schedule,
        {**bound, "callbacks": [book], "tracker": book},
        steps=STEPS,
        against=arm.source if arm.pipeline else None,
        out=out,
        resume=resume,
        target=target,
        around=around,
        stall_s=stall_s,
        stage_latch_s=0,
    )
    return left_by(made, out), made.remarks


def left_by(made: RunResult, out: Path) -> Left:
    """What a run has left in its folder and says of itself."""
    return Left(
        made.params_digest,
        made.calls_digest,
        made.trained_groups_digest,
        trained_in(out),
        Book(out / "log").steps(),
    )


def trained_in(out: Path) -> tuple[Any, ...]:
    """The list of trained groups in a folder: the step, and its groups."""
    path = out / "trained_groups.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return tuple((line["step"], tuple(map(tuple, line["groups"]))) for line in map(json.loads, lines))


def quickly() -> None:
    """From now on, runs in this process pickle weights, draw keys without a device, and make each plan once."""
    planned: dict[tuple[int, str], Any] = {}

    def once(program: Program, pipeline: str = "", target: str = "inline", against: Any = None) -> Any:
        """The plan of a program that lives as long as the process."""
        if (id(program), target) not in planned:
            planned[id(program), target] = scheduled_plan(program, pipeline, target, against)
        return planned[id(program), target]

    for module, name, instead in (
        (api, "scheduled_plan", once),
        (dispatching, "key_for", _key),
        (manifest, "save_tree", pickle_tree),
        (manifest, "restore_tree", unpickle_tree),
    ):
        setattr(module, name, instead)


def _key(seed: int, op: str, step: int, micro: int = 0) -> np.ndarray:
    return np.asarray([seed, zlib.crc32(op.encode()), step, micro], np.uint32)


def pickle_tree(directory: Path, tree: Any) -> None:
    """Write a tree of arrays; stands in for Orbax."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    directory.write_bytes(pickle.dumps(tree))


def unpickle_tree(directory: Path, like: Any) -> Any:
    """Read what `pickle_tree` wrote."""
    return pickle.loads(directory.read_bytes())
