"""The end of a job: its summary and curves, on disk and on the screen."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from steptrace.run.job.curves import Records, draw_curves
from steptrace.run.job.progress import Show

_SECONDS = 0.05


def summarise(summary: Mapping[str, Any], records: Records, out: Path, show: Show) -> dict[str, Any]:
    """Draw the curves, keep the summary as ``summary.json``, and show both; returns the summary with their place."""
    whole = {**summary, "curves": str(draw_curves(records, _title(summary), out))}
    (out / "summary.json").write_text(json.dumps(whole, indent=1) + "\n")
    if not show.quiet:
        show.say(_title(summary))
        show.console.print(_figures(whole))
        show.say(_times(whole))
        show.console.print(_phases(whole))
    show.say(f"metrics: {out / 'metrics.jsonl'}   curves: {whole['curves']}   checkpoints: {out / 'checkpoints'}")
    return whole


def _title(summary: Mapping[str, Any]) -> str:
    control = f", control {summary['control']}" if summary["control"] else ""
    return (
        f"{summary['program']} on {summary['task']}{control}, seed {summary['seed']}: held-out accuracy "
        f"{summary['accuracy_before']:.3f} to {summary['accuracy_after']:.3f} in {summary['steps']} steps"
    )


def _figures(summary: Mapping[str, Any]) -> Table:
    table = Table("", "before", "after", "gain")
    for name, first, last in (
        ("held-out accuracy, greedy", summary["accuracy_before"], summary["accuracy_after"]),
        ("reward, mean of 10 steps", summary["reward_first"], summary["reward_last"]),
    ):
        if first is not None:
            table.add_row(name, f"{first:.3f}", f"{last:.3f}", f"{last - first:+.3f}")
    return table


def _times(summary: Mapping[str, Any]) -> str:
    what = "each op waited for" if summary["timed"] else "what the calls took on the host (--timed waits for the work)"
    return f"{summary['seconds']:.0f} s in all; by phase, {what}:"


def _phases(summary: Mapping[str, Any]) -> Table:
    total = sum(summary["phase_seconds"].values()) or 1.0
    table = Table("phase", "ms a step", "s in all", "share")
    for kind, seconds in sorted(summary["phase_seconds"].items(), key=lambda item: -item[1]):
        if seconds >= _SECONDS:
            median = summary["phase_ms"].get(kind, 0.0)
            table.add_row(kind, f"{median:.1f}", f"{seconds:.1f}", f"{seconds / total:.0%}")
    return table
