"""A double of a trainer in real time: bound as the trainer of a run, cheap, and without jax."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from steptrace.simulate import Cost, Durations, Verb, VirtualTrainer

_NO_COSTS: Mapping[str, Cost] = MappingProxyType({})
_VERBS = frozenset(
    {
        "fwd_bwd",
        "fwd_bwd_staged",
        "stage_fwd_bwd",
        "update",
        "apply_deferred_update",
        "old_logps",
        "get_metrics",
        "start_metrics",
        "fetch_metrics",
        "wait_for_device",
    }
)
"""The verbs that are those of the double as they are."""


class RealTimeTrainer:
    """Runs a double's verbs in real time: it sleeps where the double lets time pass.

    The double's device is a queue of deadlines, so waits for it and what is reported of them are real. It has the
    verbs that the double has, and no other.

        trainer = RealTimeTrainer(ReplayTrainer("last"), {"fwd_bwd": Cost(work_s=0.02)})
        steptrace.run("grpo{staleness=1}", {"trainer": trainer, ...}, steps=8, pipeline="pipelined-boundary")
        assert trainer.double.trained == ...

    Args:
      double: the double.
      costs: what ops take, by kind; what is left out takes no time.

    Attributes:
      double: the double.
      called: names of the verbs that were called, in order.
    """

    def __init__(self, double: VirtualTrainer, costs: Mapping[str, Cost] = _NO_COSTS) -> None:
        self.double = double
        self.called: list[str] = []
        self._durations = Durations(costs)
        self._started = time.perf_counter()
        self._free_at = 0.0

    def info(self) -> dict[str, Any]:
        """What the double says of itself."""
        return self.double.info()

    def weights(self) -> tuple[dict[str, np.ndarray], int]:
        """The digest that the double trains, as numbers, and how many updates it has applied."""
        _, version = self._run("weights", "sync_weights")
        return self._params(), version

    def save_checkpoint(self, directory: Path) -> None:
        """Write the digest and the number of updates."""
        self._run("save_checkpoint", "save_checkpoint")
        self._write(directory, (self.double.params, self.double.applied))

    def restore_checkpoint(self, directory: Path) -> None:
        """Read back what ``save_checkpoint`` wrote."""
        saved = json.loads((directory / "double.json").read_text())
        self.double.params, self.double.applied = saved["params"], saved["applied"]
        self.double.held, self.double.staged = False, None

    def _copy_weights(self) -> tuple[dict[str, np.ndarray], int]:
        _, version = self._run("copy_weights", "copy_weights")
        return self._params(), version

    def _snapshot_checkpoint(self) -> tuple[str, int]:
        self._run("snapshot_checkpoint", "snapshot_checkpoint")
        return self.double.params, self.double.applied

    def _write_checkpoint(self, snapshot: tuple[str, int], directory: Path) -> None:
        self._run("write_checkpoint", "write_checkpoint", snapshot)
        self._write(directory, snapshot)

    def __getattr__(self, name: str) -> Any:
        if name in _VERBS and callable(getattr(self.double, name, None)):
            return lambda *args, **how: self._run(name, name, *args, **how)
        ours = {
            "copy_weights": self._copy_weights,
            "snapshot_checkpoint": self._snapshot_checkpoint,
            "write_checkpoint": self._write_checkpoint,
        }
        if name in ours and callable(getattr(self.double, name, None)):
            return ours[name]
        raise AttributeError(f"{type(self.double).__name__} has no {name}")

    def _run(self, verb: str, kind: str, *args: Any, **how: Any) -> Any:
        """Run a verb of the double to its end."""
        self.called.append(verb)
        running: Verb = getattr(self.double, verb)(_RealClock(self, kind), *args, **how)
        while True:
            try:
                seconds = next(running)
            except StopIteration as ended:
                return ended.value
            if seconds > 0:
                time.sleep(seconds)

    def _params(self) -> dict[str, np.ndarray]:
        return {"w": np.frombuffer(bytes.fromhex(self.double.params), np.uint8).astype(np.float64)}

    def _write(self, directory: Path, snapshot: tuple[str, int]) -> None:
        directory.mkdir(parents=True)
        (directory / "double.json").write_text(json.dumps({"params": snapshot[0], "applied": snapshot[1]}))


class _RealClock:
    """The clock that a double's verb sees in real time."""

    def __init__(self, trainer: RealTimeTrainer, kind: str) -> None:
        self._trainer, self._kind = trainer, kind

    @property
    def now(self) -> float:
        return time.perf_counter() - self._trainer._started

    @property
    def cost(self) -> Cost:
        return self.cost_of(self._kind)

    def cost_of(self, kind: str) -> Cost:
        return self._trainer._durations.kind(kind)

    def ship(self) -> float:
        return self.now + self.cost.ship_s

    def send(self, work_s: float | None = None, *, after: float = 0.0, what: str = "") -> float:
        trainer = self._trainer
        start = max(self.now, after, trainer._free_at)
        trainer._free_at = start + (self.cost.work_s if work_s is None else work_s)
        return trainer._free_at

    def until(self, moment: float) -> float:
        return max(0.0, moment - self.now)
