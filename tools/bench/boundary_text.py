"""What the benchmark of the step boundary prints."""

from __future__ import annotations

from collections.abc import Iterator
from math import nan
from typing import Any

from ..table import aligned
from .load import shown


def rounded(value: Any) -> Any:
    """Numbers with six digits behind the point, in whatever holds them."""
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(inner) for inner in value]
    return round(value, 6) if isinstance(value, float) else value


def tables(figures: dict[str, Any]) -> str:
    """The figures of a measurement as text."""
    rows: list[tuple[str, ...]] = [("arm", "idle ms", "step ms", "busy", "predicted idle", "step", "stages")]
    virtuals = figures.get("predicted", figures["virtual"])
    for name, arm in {**figures["arms"], **figures.get("log", {})}.items():
        virtual = virtuals.get(name, {"idle_ms_median": nan, "step_ms_median": nan})
        rows.append(
            (
                name,
                f"{arm['idle_ms_median']:7.1f}",
                f"{arm['step_ms_median']:7.1f}",
                f"{arm['busy_fraction']:5.1%}",
                f"{virtual['idle_ms_median']:7.1f}",
                f"{virtual['step_ms_median']:7.1f}",
                " ".join(map(str, arm["stages"])),
            )
        )
    fits = [("parameter", "ms", "fitted to")]
    fits += [(name, f"{found['ms']:8.3f}", found["fitted_to"]) for name, found in figures["parameters"].items()]
    same = "all runs trained the same" if figures["equal"] else "THE RUNS DID NOT TRAIN THE SAME"
    return "\n\n".join([aligned(rows), same, *_beside(figures), aligned(fits), _load(figures)])


def _beside(figures: dict[str, Any]) -> Iterator[str]:
    """How far predictions are off, and what the profiler saw."""
    if "predicted" in figures:
        rows = [("predicted", "idle off by ms", "step off by", "near enough")]
        for name, found in figures["predicted"].items():
            near = "yes" if found["idle_within"] and found["step_within"] else "NO"
            rows.append((name, f"{found['idle_error_ms']:+7.1f}", f"{found['step_error']:+6.1%}", near))
        yield aligned(rows)
    if "profile_check" in figures:
        rows = [("idle of one run", "watched ms", "jax.profiler ms", "agree")]
        for name, found in figures["profile_check"].items():
            seen = (f"{found['watcher_ms']:7.1f}", f"{found['profiler_ms']:7.1f}")
            rows.append((name, *seen, "yes" if found["agree"] else "NO"))
        yield aligned(rows)


def _load(figures: dict[str, Any]) -> str:
    quiet = "" if figures["quiet"] else "; THE MACHINE WAS NOT QUIET: times are too long, and gaps the more"
    return f"other processes took {shown(figures['foreign_cpu'])} of the machine meanwhile{quiet}"


def virtual_tables(figures: dict[str, Any]) -> str:
    """The figures in virtual time as text."""
    fits = [("parameter", "ms", "fitted to")]
    fits += [(name, f"{found['ms']:8.3f}", found["fitted_to"]) for name, found in figures["parameters"].items()]
    fits.append(("in_flight", f"{figures['in_flight']:8}", "nothing: calls in flight, as in the arms on JAX"))
    rows: list[tuple[str, ...]] = [
        ("trainer", "arm", "idle ms", "gap ms", "step ms", "stages", "latched", "device wait ms")
    ]
    for trainer, arms in figures["trainers"].items():
        for arm, found in arms.items():
            rows.append(
                (
                    trainer,
                    arm,
                    *(f"{found[name]:7.1f}" for name in ("idle_ms_median", "gap_ms_median", "step_ms_median")),
                    str(found["stages"]),
                    "yes" if found["latched"] else "",
                    " to ".join(f"{wait:.1f}" for wait in found["device_wait_ms"]),
                )
            )
    claims = [(text, str(rounded(value))) for text, value in figures["claims"].items()]
    changes: list[tuple[str, ...]] = [
        ("replay of the first, staged before and after", "idle ms", "gap ms", "ratio of gaps")
    ]
    for name, found in figures["sensitivity"].items():
        changes.append((name, *(_pair(found[key]) for key in ("idle_ms", "gap_ms")), f"{found['gap_ratio']:.3f}"))
    tables = [aligned(table) for table in (fits, rows, claims, changes)]
    return "\n\n".join([*tables, _claimed(figures["claimed"])])


def _pair(values: list[float]) -> str:
    return f"{values[0]:.1f} and {values[1]:.1f}"


def _claimed(found: dict[str, Any]) -> str:
    """The claimed gaps: what they determine, and what they leave open."""
    claimed = found["claimed"]
    rows: list[tuple[str, ...]] = [("parameters", "gap before", "gap after", "device wait")]
    for name, changes in found["met_by"].items():
        for change, gaps in changes.items():
            label = name if change == "as chosen" else f"  {change}"
            rows.append((label, *(f"{gaps[key]:6.2f}" for key in ("gap_before", "gap_after", "device_wait"))))
    sums = [(name, f"{value:.2f}") for name, value in found["determined"].items()]
    return (
        f"claimed of such doubles: gaps of {claimed['gap_before']} and {claimed['gap_after']} units, device waits of "
        f"{claimed['device_wait'][0]} to {claimed['device_wait'][1]}\n{found['under_determined']}\n\n"
        f"{aligned(sums)}\n\n{aligned(rows)}"
    )
