"""A run whose parts raise at their n-th call, and what it leaves behind to compare with a run that went through."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fakes import parts

import steptrace
from steptrace.ir import Program
from steptrace.run.store import checkpoints


class Crash(BaseException):
    """Stands for the end of the process."""


class Clock:
    """Counts the moments before and after each call of a part, and ends the process at one of them."""

    def __init__(self, stop: int | None = None) -> None:
        self.stop = stop
        self.moments: list[str] = []

    def tick(self, what: str) -> None:
        self.moments.append(what)
        if len(self.moments) - 1 == self.stop:
            raise Crash(what)


class Watched:
    """A part whose calls a clock counts."""

    def __init__(self, part: Any, role: str, clock: Clock) -> None:
        self._part, self._role, self._clock = part, role, clock

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._part, name)
        return watched(found, f"{self._role}.{name}", self._clock) if callable(found) else found


def watched(function: Callable[..., Any], name: str, clock: Clock) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        clock.tick(f"before {name}")
        result = function(*args, **kwargs)
        clock.tick(f"after {name}")
        return result

    return call


class FileTracker:
    """Records as JSON lines."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps([step, dict(metrics)]) + "\n")

    def rewind(self, step: int, last_record: Mapping[str, float] | None) -> None:
        kept = [record for record in read_lines(self.path) if record[0] < step]
        if last_record is not None:
            kept.append([step, dict(last_record)])
        self.path.write_text("".join(json.dumps(record) + "\n" for record in kept))

    def close(self) -> None:
        """Nothing is open."""


class Mean:
    """A callback with a state of its own: the discounted sum of all losses so far."""

    def __init__(self) -> None:
        self.value = 0.0

    def on_step_begin(self, step: int) -> None:
        """Nothing."""

    def on_step_end(self, step: int, metrics: Mapping[str, float]) -> None:
        self.value = 0.9 * self.value + metrics["loss"] + step

    def save_checkpoint(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        (directory / "mean").write_text(repr(self.value))

    def restore_checkpoint(self, directory: Path) -> None:
        self.value = float((directory / "mean").read_text())


def read_lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@dataclass(frozen=True)
class Left:
    """What a run leaves."""

    params: str
    calls: str
    groups: str
    trained: list[Any]
    logged: list[Any]
    mean: float


def run_in(
    out: Path, program: Program, *, steps: int = 5, stop: int | None = None, **options: Any
) -> tuple[Left, Clock]:
    """Run in a folder, going on from its checkpoint when there is one; the clock stops the run at a moment."""
    clock, mean = Clock(stop), Mean()
    fresh = parts()
    resume = bool(checkpoints(out))
    log = out / "log.jsonl"
    if not resume:
        log.unlink(missing_ok=True)
    bound = {
        "trainer": Watched(fresh["trainer"], "trainer", clock),
        "rollout": Watched(fresh["rollout"], "rollout", clock),
        "reference": Watched(fresh["reference"], "reference", clock),
        "reward": watched(fresh["reward"], "reward", clock),
        "callbacks": Watched(mean, "callback", clock),
        "tracker": Watched(FileTracker(log), "tracker", clock),
    }
    result = steptrace.run(program, {**fresh, **bound}, steps=steps, out=out, resume=resume, **options)
    left = Left(
        result.params_digest,
        result.calls_digest,
        result.trained_groups_digest,
        read_lines(out / "trained_groups.jsonl"),
        read_lines(log),
        mean.value,
    )
    return left, clock
