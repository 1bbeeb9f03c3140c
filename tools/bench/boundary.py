"""`steptrace bench boundary`: how long the trainer's device is idle between two steps, under four schedules."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from absl import flags

from ..command import Command, UsageError
from ..table import aligned
from .load import ForeignLoad, shown

if TYPE_CHECKING:
    from .boundary_parts import Workload
    from .boundary_run import Arm


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_string("target", "inline", "what the schedules are lowered to", flag_values=values)
    flags.DEFINE_float("microbatch-mb", 8.0, "megabytes shipped with each micro-batch", 0.0, flag_values=values)
    flags.DEFINE_integer("micro-batches", 4, "micro-batches of a step", 1, flag_values=values)
    flags.DEFINE_integer("rows", 64, "rows of a micro-batch", 4, flag_values=values)
    flags.DEFINE_integer("dim", 128, "features of the model, a multiple of 8", 8, flag_values=values)
    flags.DEFINE_float("host-ms", 20.0, "work of the reward, and of the log, in ms a step", 0.0, flag_values=values)
    flags.DEFINE_integer("steps", 8, "steps of a run; the first two are not counted", 4, flag_values=values)
    flags.DEFINE_integer("rounds", 3, "how often each arm is run", 1, flag_values=values)
    flags.DEFINE_integer(
        "in-flight", 1, "training calls that may be dispatched and not computed", 1, flag_values=values
    )
    flags.DEFINE_bool(
        "replay", False, "the update first reads a flag of the step's last micro-batch", flag_values=values
    )
    flags.DEFINE_bool("pin", True, "give the device one core and the host another", flag_values=values)
    flags.DEFINE_bool("virtual", False, "in virtual time, with trainers that only take time", flag_values=values)
    flags.DEFINE_string(
        "base",
        "",
        "with --virtual, the output of this benchmark with --json, to fit to its base arm",
        flag_values=values,
    )
    flags.DEFINE_bool("json", False, "print one JSON object instead of the tables", flag_values=values)


def _run(operands: list[str], values: flags.FlagValues) -> int:
    if values.virtual:
        return _virtual(values)
    with _pinned(values.pin):
        from .boundary_parts import Workload
        from .boundary_run import measured

        work = Workload(
            megabytes=values["microbatch-mb"].value,
            micro_batches=values["micro-batches"].value,
            rows=values.rows,
            dim=values.dim,
            host_ms=values["host-ms"].value,
            steps=values.steps,
            rounds=values.rounds,
            in_flight=values["in-flight"].value,
            replay=values.replay,
        )
        load = ForeignLoad()
        arms = measured(work, values.target)
    figures = summary(arms, work, values.target) | {"foreign_cpu": load.share()}
    print(json.dumps(rounded(figures)) if values.json else _tables(figures))
    return 0


def summary(arms: dict[str, Arm], work: Workload, target: str) -> dict[str, Any]:
    """All figures of a measurement: by arm, the parameters fitted to the base arm, and what they predict."""
    from dataclasses import asdict

    from steptrace.simulate import VirtualTrainer
    from steptrace.testing import ReplayTrainer

    from . import virtual_boundary
    from .boundary_run import fitted

    parameters = fitted(arms["base"], work.micro_batches)

    def make() -> VirtualTrainer:
        trainer = ReplayTrainer("none") if work.replay else VirtualTrainer()
        return virtual_boundary.bounded(trainer, work.in_flight)

    predicted = virtual_boundary.arms(parameters, work.micro_batches, make)
    return {
        "arms": {name: _arm(arm) for name, arm in arms.items()},
        "equal": len(set().union(*(arm.digests for arm in arms.values()))) == 1,
        "target": target,
        "workload": asdict(work),
        "parameters": {
            name: {"ms": value * 1e3, "fitted_to": virtual_boundary.FITTED_TO[name]}
            for name, value in asdict(parameters).items()
        },
        "virtual": {
            name: {key: found[key] for key in ("idle_ms_median", "step_ms_median", "busy_fraction", "latched")}
            for name, found in predicted.items()
        },
    }


def _arm(arm: Arm) -> dict[str, Any]:
    """The figures of an arm; digests are joined where its runs differ."""
    params, calls = (sorted({digests[at] for digests in arm.digests}) for at in (0, 1))
    return {
        "idle_ms_median": median(arm.idle_ms),
        "step_ms_median": median(arm.step_ms),
        "busy_fraction": arm.busy_s / arm.whole_s,
        "params_digest": "+".join(params),
        "calls_digest": "+".join(calls),
        "stages": arm.stages,
        "remarks": list(arm.remarks),
    }


def _virtual(values: flags.FlagValues) -> int:
    from .virtual_boundary import MEASURED, outcomes, parameters_of, virtual_boundary

    measured = _read(values.base) if values.base else None
    parameters = MEASURED if measured is None else parameters_of(measured)
    figures = virtual_boundary(parameters, micro_batches=values["micro-batches"].value)
    if measured is not None:
        figures["outcomes"] = outcomes(measured)
    print(json.dumps(rounded(figures)) if values.json else _virtual_tables(figures))
    return 0


def _read(path: str) -> dict[str, Any]:
    """The figures of an earlier measurement.

    Raises:
      UsageError: the file is not the output of this benchmark.
    """
    try:
        lines = Path(path).read_text().splitlines()
        found = json.loads(lines[-1])
        if {"arms", "virtual", "parameters"} <= found.keys():
            return dict(found)
    except (OSError, ValueError, IndexError, AttributeError) as error:
        raise UsageError(f"{path} cannot be read as the output of `bench boundary --json`: {error}") from error
    raise UsageError(f"{path} is not the output of `bench boundary --json`")


def rounded(value: Any) -> Any:
    """Numbers with six digits behind the point, in whatever holds them."""
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(inner) for inner in value]
    return round(value, 6) if isinstance(value, float) else value


@contextmanager
def _pinned(wanted: bool) -> Iterator[None]:
    """Give the device's threads, which are about to be made, one core, and this thread and its children another.

    So the host's work and the device's do not take each other's time, as with an accelerator.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if not wanted or len(cores) < 2:
        yield
        return
    import jax

    os.sched_setaffinity(0, {cores[-1]})
    (jax.numpy.zeros(8) + 1).block_until_ready()
    os.sched_setaffinity(0, set(cores[:-1]))
    try:
        yield
    finally:
        os.sched_setaffinity(0, set(cores))


def _tables(figures: dict[str, Any]) -> str:
    rows = [("arm", "idle ms", "step ms", "busy", "predicted idle", "step", "stages")]
    for name, arm in figures["arms"].items():
        virtual = figures["virtual"][name]
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
    return (
        f"{aligned(rows)}\n\n{same}\n\n{aligned(fits)}\n\n"
        f"other processes took {shown(figures['foreign_cpu'])} of the machine meanwhile"
    )


def _virtual_tables(figures: dict[str, Any]) -> str:
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


COMMAND = Command(
    name="bench boundary",
    operands="",
    summary="How long the trainer's device is idle between two steps, under four schedules.",
    examples=(
        ("bench boundary --microbatch-mb 50", "a real trainer, and what a model fitted to its base arm predicts"),
        ("bench boundary --microbatch-mb 50 --replay --json", "an update that reads a flag first; for scripts"),
        ("bench boundary --virtual --micro-batches 9", "in virtual time, with doubles of trainers"),
        ("bench boundary --virtual --base base.json", "fitted to the base arm of an earlier measurement"),
    ),
    run=_run,
    define=_define,
    details="""\
The arms are the program as written (base), taken ahead (pipelined), and with the next step's first micro-batch shipped
ahead, behind the update (staged-after) or in front of it (staged-before). Each is run in turn, several times, with one
trainer. A thread waits for each result of the device, and idle is what lies between a step's last micro-batch and the
next one's first without any work.""",
)
