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
from .boundary_text import rounded, tables, virtual_tables
from .load import QUIET, ForeignLoad, wait_until_quiet

if TYPE_CHECKING:
    from .boundary_parts import Workload
    from .boundary_run import Arm, Measured


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_string("target", "inline", "what the schedules are lowered to", flag_values=values)
    flags.DEFINE_float("microbatch-mb", 8.0, "megabytes shipped with each micro-batch", 0.0, flag_values=values)
    flags.DEFINE_integer("micro-batches", 6, "micro-batches of a step", 1, flag_values=values)
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
    flags.DEFINE_float(
        "log-ms", 0.0, "also run staged-before with so long a log, in two places; 0 for no", 0.0, flag_values=values
    )
    flags.DEFINE_bool("profile-check", False, "have jax.profiler look at a run of two arms too", flag_values=values)
    flags.DEFINE_float("wait-quiet", 20.0, "how long to wait for a quiet machine, in s", 0.0, flag_values=values)
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
            log_ms=values["log-ms"].value,
        )
        before = wait_until_quiet(values["wait-quiet"].value)
        load = ForeignLoad()
        made = measured(work, values.target, profile_check=values["profile-check"].value)
    share = load.share()
    figures = {
        **summary(made.arms, work, values.target),
        **beside(made, work),
        "foreign_cpu_before": before,
        "foreign_cpu": share,
        "quiet": share is None or share <= QUIET,
    }
    print(json.dumps(rounded(figures)) if values.json else tables(figures))
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


def beside(made: Measured, work: Workload) -> dict[str, Any]:
    """What was asked for beside the four arms, and what is predicted of those in workers."""
    found: dict[str, Any] = {}
    if made.log_arms:
        found["log"] = {name: _arm(arm) for name, arm in made.log_arms.items()}
    if made.checks:
        found["profile_check"] = made.checks
    if made.calibration is not None and not work.replay:  # what an update that reads a flag holds up is not modelled
        from dataclasses import asdict

        from .predicted import cold_start, durations, predictions, with_errors

        costs = durations(made.arms["base"], made.calls, made.calibration, work.micro_batches)
        predicted = predictions(costs, made.calibration, cold_start(made.arms["base"]), work.micro_batches)
        found["predicted"] = with_errors(predicted, {name: _arm(arm) for name, arm in made.arms.items()})
        found["calibration"] = {name: value * 1e3 for name, value in asdict(made.calibration).items()}
        found["costs_ms"] = {
            kind: [1e3 * cost.issue_s, 1e3 * cost.work_s, 1e3 * cost.ship_s] for kind, cost in costs.costs.items()
        }
    return found


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
    print(json.dumps(rounded(figures)) if values.json else virtual_tables(figures))
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


COMMAND = Command(
    name="bench boundary",
    operands="",
    summary="How long the trainer's device is idle between two steps, under four schedules.",
    examples=(
        ("bench boundary --microbatch-mb 50", "a real trainer, and what a model fitted to its base arm predicts"),
        ("bench boundary --microbatch-mb 50 --replay --json", "an update that reads a flag first; for scripts"),
        ("bench boundary --target process --log-ms 160", "parts in workers; a log longer than a micro-batch too"),
        ("bench boundary --virtual --micro-batches 9", "in virtual time, with doubles of trainers"),
        ("bench boundary --virtual --base base.json", "fitted to the base arm of an earlier measurement"),
    ),
    run=_run,
    define=_define,
    details="""\
The arms are the program as written (base), taken ahead (pipelined), and with the next step's first micro-batch shipped
ahead, behind the update (staged-after) or in front of it (staged-before). Each is run in turn, several times, with one
trainer. A thread waits for each result of the device, and idle is what lies between a step's last micro-batch and the
next one's first without any work; --profile-check has jax.profiler look at it too. With --target process each part is
in a worker, and idle and step times of the arms are predicted: from the base arm, and from what the verbs of a stage
take on their own. --log-ms adds two arms, a log longer than a micro-batch on the lane that calls the trainer, and on
its own.""",
)
