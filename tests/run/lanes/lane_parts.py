"""Parts for schedules in plain numpy: a trainer with every verb, parts that take random times, and runs to compare."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from fakes import CharTokenizer, HalfReference, HashRollout, HashTrainer, length_reward, parts

import steptrace
from steptrace.lang.records import MicroBatch
from steptrace.run.data.packing import Packer
from steptrace.testing.hash_parts import StagingTrainer

PIPES = (
    "pipelined-boundary",
    "pipelined-boundary-staged-after",
    "pipelined-boundary-unstaged",
    "async-everything",
)
SINGLE = ("take-ahead{depth=1}", "defer-metrics", "defer-update", "fuse-update", "pipeline-micro-batches")


class SeenReference(HalfReference):
    """The reference, and the micro-batches it was called for."""

    def __init__(self) -> None:
        self.seen: set[tuple[int, int]] = set()

    def logps(self, micro_batch: MicroBatch) -> np.ndarray:
        made = super().logps(micro_batch)
        self.seen.add((micro_batch.step, micro_batch.index))
        return made


class PatientTrainer(StagingTrainer):
    """The last call of a step takes until the first micro-batch of the next one is packed, so that it is staged."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.until = steps
        self.reference = SeenReference()
        self.patience_s = 20.0

    def fwd_bwd(self, micro_batch: MicroBatch, **how: bool) -> dict[str, bool] | None:
        ahead = (micro_batch.step + 1, 0)
        if micro_batch.last and ahead[0] < self.until:
            wait_until(lambda: ahead in self.reference.seen, self.patience_s)
            time.sleep(0.02)  # from the reference's answer to the value being there
        return super().fwd_bwd(micro_batch, **how)


def wait_until(condition: Callable[[], bool], limit_s: float = 20.0) -> None:
    """Wait until a condition holds; a test that waits in vain fails by what it then sees."""
    end = time.monotonic() + limit_s
    while not condition() and time.monotonic() < end:
        time.sleep(0.001)


class Delays:
    """Sleeps of random length, by seed; each thread draws its own."""

    def __init__(self, seed: int, most_ms: float = 3.0) -> None:
        self._rng = np.random.default_rng(seed)
        self._lock = threading.Lock()
        self._most = most_ms / 1e3

    def __call__(self) -> None:
        with self._lock:
            seconds = self._rng.random() ** 3 * self._most
        time.sleep(seconds)


class Slow:
    """A part each of whose calls takes a random time."""

    def __init__(self, part: Any, delays: Callable[[], None]) -> None:
        self._part, self._delays = part, delays

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._part, name)
        if not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            self._delays()
            made = found(*args, **kwargs)
            self._delays()
            return made

        return call


def slowed(bound: dict[str, Any], delays: Callable[[], None]) -> dict[str, Any]:
    """The parts, with delays in each call of trainer, rollout, reference and reward."""

    def reward(*args: Any) -> Any:
        delays()
        return bound["reward"](*args)

    return (
        bound | {role: Slow(bound[role], delays) for role in ("trainer", "rollout", "reference")} | {"reward": reward}
    )


def lane_bind(trainer: HashTrainer | None = None, **other: Any) -> dict[str, Any]:
    """Parts whose steps have different numbers of micro-batches: rows of 20 tokens hold one sequence or two."""
    if isinstance(trainer, PatientTrainer):
        other = {"reference": trainer.reference} | other
    return parts(trainer=trainer or StagingTrainer(), packer=Packer(rows=1, length=20, pad_id=0)) | other


@dataclass(frozen=True)
class Made:
    """What a run made, to compare."""

    params: str
    calls: str
    groups: str
    records: list[dict[str, float]]
    steps: int


def made_by(program: Any, bound: dict[str, Any], *, pipeline: str = "", **options: Any) -> Made:
    """Run, and give what is compared; a run that hangs is given up."""
    result = steptrace.run(program, bound, pipeline=pipeline, **({"stall_s": 60.0} | options))
    records = [dict(record) for record in result.records]
    return Made(result.params_digest, result.calls_digest, result.trained_groups_digest, records, result.steps)


def no_lane_is_left() -> bool:
    """Whether every lane's thread is gone."""
    return not [thread for thread in threading.enumerate() if thread.name.startswith("steptrace-")]


__all__ = [
    "PIPES",
    "SINGLE",
    "CharTokenizer",
    "Delays",
    "HalfReference",
    "HashRollout",
    "HashTrainer",
    "Made",
    "PatientTrainer",
    "SeenReference",
    "Slow",
    "StagingTrainer",
    "lane_bind",
    "length_reward",
    "made_by",
    "no_lane_is_left",
    "slowed",
    "wait_until",
]
