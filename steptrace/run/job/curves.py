"""The curves of a run as a picture: a PNG by matplotlib, or an HTML page that needs nothing."""

from __future__ import annotations

import html
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

CURVES = (
    ("reward", "mean reward"),
    ("kl", "KL to the reference"),
    ("entropy", "entropy, nats"),
    ("tokens_per_s", "tokens/s"),
)
"""What is drawn: a metric and its title."""

_WIDTH, _HEIGHT = 420, 200

Records = Sequence[Mapping[str, Any]]


def draw_curves(records: Records, title: str, folder: Path) -> Path:
    """Draw the curves of a run into ``folder``; returns the file that was written."""
    if importlib.util.find_spec("matplotlib") is None:
        path = folder / "curves.html"
        path.write_text(_page(records, title), encoding="utf-8")
        return path
    path = folder / "curves.png"
    _draw_png(records, title, path)
    return path


def smoothed(values: Sequence[float], window: int = 10) -> list[float]:
    """The mean of each value and up to ``window - 1`` before it."""
    return [sum(values[max(0, end - window) : end]) / (end - max(0, end - window)) for end in range(1, len(values) + 1)]


def _points(records: Records, name: str) -> tuple[list[float], list[float]]:
    """Steps and values of a metric, where it was recorded and is a number."""
    there = [record for record in records if record.get(name) is not None]
    return [record["step"] for record in there], [record[name] for record in there]


def _draw_png(records: Records, title: str, path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.4), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=10)
    for axes, (name, label) in zip(figure.subplots(2, 2).flat, CURVES, strict=True):
        steps, values = _points(records, name)
        axes.plot(steps, values, color="0.8", linewidth=0.7)
        axes.plot(steps, smoothed(values), color="tab:blue", linewidth=1.4)
        axes.set_title(label, fontsize=9)
        axes.set_xlabel("step", fontsize=8)
        axes.tick_params(labelsize=8)
    figure.savefig(path, dpi=110)


def _page(records: Records, title: str) -> str:
    charts = "\n".join(_chart(*_points(records, name), label) for name, label in CURVES)
    return (
        f"<!doctype html><meta charset=utf-8><title>{html.escape(title)}</title>"
        "<style>body{font:14px sans-serif;max-width:900px;margin:2em auto}figure{display:inline-block;margin:8px}"
        f"svg{{border:1px solid #ccc}}</style>\n<h1>{html.escape(title)}</h1>\n{charts}\n"
    )


def _chart(steps: Sequence[float], values: Sequence[float], label: str) -> str:
    """One curve as inline SVG, its range in the caption."""
    if not values:
        return f"<figure><figcaption>{html.escape(label)}: not recorded</figcaption></figure>"
    low, high = min(values), max(values)
    lines = [
        f'<polyline fill="none" stroke="{colour}" points="{_polyline(steps, line, low, high)}"/>'
        for line, colour in ((values, "#ccc"), (smoothed(values), "#06c"))
    ]
    caption = f"{label}: {values[0]:.4g} to {values[-1]:.4g} (least {low:.4g}, most {high:.4g})"
    return (
        f"<figure><figcaption>{html.escape(caption)}</figcaption>"
        f'<svg width="{_WIDTH}" height="{_HEIGHT}">{"".join(lines)}</svg></figure>'
    )


def _polyline(steps: Sequence[float], values: Sequence[float], low: float, high: float) -> str:
    first, span, height = steps[0], (steps[-1] - steps[0]) or 1.0, (high - low) or 1.0
    return " ".join(
        f"{(step - first) / span * _WIDTH:.1f},{_HEIGHT - (value - low) / height * _HEIGHT:.1f}"
        for step, value in zip(steps, values, strict=True)
    )
