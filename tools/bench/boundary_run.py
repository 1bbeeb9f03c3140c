"""The step boundary on JAX: one trainer, four schedules of one program, their runs interleaved."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from steptrace.lang.records import Group, MicroBatch, Prompt
from steptrace.run.api import run
from steptrace.run.data.packing import Packer
from steptrace.run.data.prompts import ListPrompts

from . import boundary_workers
from .arms import ARMS, LOG_ARMS, pipeline_of, program_text
from .boundary_calibration import Calibration, calibrated
from .boundary_parts import (
    LENGTH,
    SAMPLES,
    VOCABULARY,
    ByteTokenizer,
    FlatReference,
    HashRollout,
    Workload,
    host_work,
    watched_trainer,
)
from .profiled import compared
from .virtual_boundary import Parameters
from .watched import Payloads, Seen, Watched, WatchedTrainer, boundary_figures

SKIPPED = 2
"""Steps at the beginning of each run that are not counted."""


@dataclass
class Arm:
    """What was measured of an arm.

    Attributes:
      idle_ms, step_ms: of each step that counts.
      busy_s, whole_s: time that the device worked, and time in all.
      digests: of parameters and of calls, of each run.
      phases: seconds by kind of op, of each step that counts.
      seen: what the device did, by run.
      fetches: seconds of the metrics behind the update.
      stages: of each run.
      remarks: of the last run.
    """

    idle_ms: list[float] = field(default_factory=list)
    step_ms: list[float] = field(default_factory=list)
    busy_s: float = 0.0
    whole_s: float = 0.0
    digests: set[tuple[str, str]] = field(default_factory=set)
    phases: list[dict[str, float]] = field(default_factory=list)
    seen: list[list[Seen]] = field(default_factory=list)
    fetches: list[float] = field(default_factory=list)
    stages: list[int] = field(default_factory=list)
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Packer(Packer):
    """Packs, and makes the payload of each micro-batch."""

    payloads: Payloads | None = None

    def pack(self, groups: Sequence[Group], *, step: int) -> list[MicroBatch]:
        packed = super().pack(groups, step=step)
        assert self.payloads is not None, "a packer of the benchmark has payloads"
        for micro_batch in packed:
            self.payloads.make(step, micro_batch.index)
        return packed


class _Tracker:
    """Logs with as much work as was asked for, and keeps the time of each kind of op."""

    def __init__(self, host_ms: float) -> None:
        self.host_ms = host_ms
        self.steps: list[dict[str, float]] = []

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        host_work(self.host_ms)

    def phases(self, step: int, seconds: Mapping[str, float]) -> None:
        self.steps.append(dict(seconds))

    def close(self) -> None:
        pass


@dataclass
class Measured:
    """A measurement.

    Attributes:
      arms: by name, those of `ARMS`.
      log_arms: by name, those of `LOG_ARMS`, if they were asked for.
      checks: by arm, both looks at a run's gaps, if that was asked for; see `profiled.compared`.
      calls: of the trainer, as the driver saw them, in each run of the base arm; in workers only.
      calibration: what the verbs of a stage take on their own; in workers only.
    """

    arms: dict[str, Arm]
    log_arms: dict[str, Arm] = field(default_factory=dict)
    checks: dict[str, dict[str, float | bool]] = field(default_factory=dict)
    calls: list[list[boundary_workers.Called]] = field(default_factory=list)
    calibration: Calibration | None = None


def measured(work: Workload, target: str, *, profile_check: bool = False) -> Measured:
    """Run every arm, one after the other, as often as asked for; all with one trainer, set back in between."""
    made = Measured({name: Arm() for name in ARMS}, {name: Arm() for name in LOG_ARMS if work.log_ms})
    with tempfile.TemporaryDirectory() as folder, _parts(work, target) as parts:
        start, trainer = Path(folder) / "start", parts["trainer"]
        trainer.begin(Payloads(work.megabytes), reads_flag=False)
        trainer.save_checkpoint(start)
        _once(parts, "", work, target, steps=1)  # compiles
        for _ in range(work.rounds):
            for name in ARMS:
                trainer.restore_checkpoint(start)
                _measure(made.arms[name], parts, pipeline_of(name, target), work, target)
                if name == "base" and isinstance(trainer, boundary_workers.ShippingPart):
                    made.calls.append(trainer.calls)
            for name in made.log_arms:
                trainer.restore_checkpoint(start)
                _measure(made.log_arms[name], parts, pipeline_of(name, target), work, target, work.log_ms)
        for name in ("base", "staged-before") if profile_check else ():
            trainer.restore_checkpoint(start)
            _, watched, _ = _once(parts, pipeline_of(name, target), work, target, work.steps, profile=True)
            made.checks[name] = compared(watched.seen, watched.busy or [], SKIPPED)
        if isinstance(trainer, boundary_workers.ShippingPart):
            trainer.restore_checkpoint(start)
            made.calibration = calibrated(trainer, work)
    return made


@contextmanager
def _parts(work: Workload, target: str) -> Iterator[dict[str, Any]]:
    """Trainer, rollout and reference, in this process or in workers."""
    if target == "process":
        with boundary_workers.parts(work) as parts:
            yield parts
    else:
        yield {"trainer": watched_trainer(WatchedTrainer, work), "rollout": HashRollout(), "reference": FlatReference()}


def _measure(
    arm: Arm, parts: Mapping[str, Any], pipeline: str, work: Workload, target: str, log_ms: float = 0.0
) -> None:
    """One run of an arm, added to what is known of it."""
    result, watched, tracker = _once(parts, pipeline, work, target, work.steps, log_ms=log_ms)
    found = boundary_figures(watched.seen, SKIPPED)
    arm.idle_ms += found["idle_ms"]
    arm.step_ms += found["step_ms"]
    arm.busy_s += found["busy_s"]
    arm.whole_s += found["whole_s"]
    arm.digests.add((result.params_digest, result.calls_digest))
    arm.phases += tracker.steps[SKIPPED:]
    arm.seen.append([one for one in watched.seen if one.step >= SKIPPED])
    arm.fetches += watched.fetches[SKIPPED:]
    arm.stages.append(watched.stages)
    arm.remarks = result.remarks


def _once(
    parts: Mapping[str, Any],
    pipeline: str,
    work: Workload,
    target: str,
    steps: int,
    *,
    log_ms: float = 0.0,
    profile: bool = False,
) -> tuple[Any, Watched, _Tracker]:
    payloads, tracker, trainer = Payloads(work.megabytes), _Tracker(log_ms or work.host_ms), parts["trainer"]
    trainer.begin(payloads, reads_flag=work.replay, profile=profile)

    def reward(prompt: Prompt, completions: Sequence[str]) -> list[float]:
        host_work(work.host_ms / prompts)
        return [int(text) / VOCABULARY for text in completions]

    prompts = work.micro_batches * work.rows // SAMPLES
    bind = {
        **parts,
        "reward": reward,
        "prompts": ListPrompts([Prompt(f"p{index}", f"{index:08d}") for index in range(4 * prompts)]),
        "tokenizer": ByteTokenizer(),
        "packer": _Packer(rows=work.rows, length=LENGTH, payloads=payloads),
        "tracker": tracker,
    }
    try:
        program = program_text(prompts, SAMPLES)
        result = run(program, bind, steps=steps, pipeline=pipeline, target=target)
    finally:
        watched = trainer.finish()
    return result, watched, tracker


def fitted(base: Arm, micro_batches: int) -> Parameters:
    """The parameters of the model in virtual time, each a figure of the base arm."""
    seen = [one for run in base.seen for one in run]
    trained = [one for one in seen if one.kind == "fwd_bwd"]
    phase: dict[str, float] = defaultdict(float)
    for kind in {kind for step in base.phases for kind in step}:
        phase[kind] = median(step.get(kind, 0.0) for step in base.phases)
    return Parameters(
        micro_batch_s=median(one.end - one.start for one in trained if one.index > 0 or micro_batches == 1),
        update_s=median(one.end - one.start for one in seen if one.kind == "update"),
        ship_s=median(one.returned - one.called for one in trained if one.index == 0),
        link_s=median(max(0.0, one.arrived - one.returned) for one in trained if one.index == 0),
        call_s=median(one.returned - one.sent for one in seen if one.kind == "update"),
        fetch_s=median(base.fetches),
        sync_s=phase["sync_weights"],
        data_s=sum(phase[kind] for kind in ("dispatch", "take", "reward", "advantages", "pack")),
        report_s=sum(phase[kind] for kind in ("on_step_begin", "commit", "log", "on_step_end", "free")),
    )
