"""Trackers of the job: metrics as JSON lines, and as TensorBoard events."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from steptrace.diag.job import TrackerMissingError


class JsonLines:
    """Metrics as one JSON object a line, on disk with each step.

    A metric that is not finite is null. Beside the metrics a line has ``seconds`` (of the process since the tracker was
    made) and ``tokens_per_s`` (completion tokens trained, by the time since the line before).

    Args:
      path: the file; lines that are there stay.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._start = self._last = time.perf_counter()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append the metrics of one step."""
        now = time.perf_counter()
        tokens = metrics.get("completion_tokens", 0.0)
        pace = {"seconds": round(now - self._start, 3), "tokens_per_s": round(tokens / (now - self._last), 1)}
        self._last = now
        with self.path.open("a") as file:
            file.write(_line({**metrics, **pace}))

    def rewind(self, step: int, last_record: Mapping[str, float] | None) -> None:
        """Drop the records behind ``step``, as the run goes on from there; add that step's own if it is not there."""
        records = read_records(self.path)
        kept = [record for record in records if record["step"] < step]
        if last_record is not None:
            kept += [record for record in records if record["step"] == step][:1] or [{**last_record, "step": step}]
        building = self.path.with_name(f".{self.path.name}.new")
        building.write_text("".join(map(_line, kept)))
        os.replace(building, self.path)

    def close(self) -> None:
        """Nothing to release: each line was written when it came."""


def read_records(path: Path) -> list[dict[str, Any]]:
    """The records of a file, oldest first, numbers by name; None stands for one that is not finite.

    A last line that was cut short when its run was killed is no record.
    """
    if not path.exists():
        return []
    records = []
    for line in path.read_text().splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and "step" in record:
            records.append(record)
    return records


def _line(record: Mapping[str, float | None]) -> str:
    """The record as JSON, which knows no NaN and no infinity: those of a skipped update, say, are null."""
    finite = {name: None if value is None or not math.isfinite(value) else value for name, value in record.items()}
    return json.dumps(finite, allow_nan=False) + "\n"


class TensorBoard:
    """Metrics as TensorBoard events, by tensorboardX.

    Args:
      folder: where the event files go.

    Raises:
      TrackerMissingError: tensorboardX is not installed.
    """

    def __init__(self, folder: Path) -> None:
        check_tensorboard()
        self._folder = folder
        self._purge: int | None = None
        self._writer: Any = None

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add a scalar for each metric."""
        for name, value in metrics.items():
            if name != "step":
                self._open().add_scalar(name, value, step)

    def rewind(self, step: int, last_record: Mapping[str, float] | None) -> None:
        """Mark the events from ``step`` on as void: TensorBoard hides those of the files before."""
        self._purge = step
        if last_record is not None:
            self.log(step, last_record)

    def close(self) -> None:
        """Flush and close the event file."""
        if self._writer is not None:
            self._writer.close()

    def _open(self) -> Any:
        if self._writer is None:
            from tensorboardX import SummaryWriter

            self._writer = SummaryWriter(str(self._folder), purge_step=self._purge)
        return self._writer


def check_tensorboard() -> None:
    """Raise `TrackerMissingError` when tensorboardX is not installed."""
    try:
        found = importlib.util.find_spec("tensorboardX")
    except ValueError:
        found = None
    if found is None:
        raise TrackerMissingError(
            "TensorBoard events need the package tensorboardX, which is not installed",
            help="python -m pip install 'steptrace[tensorboard]'",
        )
