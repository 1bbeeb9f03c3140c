"""The step boundary in virtual time: parameters fitted to the base schedule, and what follows for the others."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from .arms import ARMS, pipeline_of, program_text

if TYPE_CHECKING:
    from steptrace.lower import Plan
    from steptrace.simulate import Durations, Feed, Run, VirtualTrainer

STEPS = 8
"""Steps of a run in virtual time; the figures are medians behind the first."""

CHANGE = 0.2
"""By which each parameter is changed, to see what depends on it."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """What is free in the model of the boundary, each in seconds.

    Attributes:
      micro_batch_s: work of the trainer's device on one micro-batch.
      update_s: its work on the update.
      ship_s: a training call with data, on the lane that makes it.
      link_s: from there on until the data is where the work is.
      call_s: a call without data.
      fetch_s: the metrics, from the moment at which the update has landed.
      sync_s: the weight sync.
      data_s: dispatch, take, reward, advantages and packing.
      report_s: log, the callback at the end of the step, and what is freed.
    """

    micro_batch_s: float
    update_s: float
    ship_s: float
    link_s: float
    call_s: float
    fetch_s: float
    sync_s: float
    data_s: float
    report_s: float

    def durations(self) -> Durations:
        """As the costs of ops."""
        from steptrace.simulate import Cost, Durations

        return Durations(
            {
                "fwd_bwd": Cost(self.ship_s, self.micro_batch_s, self.link_s),
                "fwd_bwd_staged": Cost(self.call_s, self.micro_batch_s),
                "update": Cost(self.call_s, self.update_s),
                "get_metrics": Cost(self.fetch_s),
                "sync_weights": Cost(self.sync_s),
                "pack": Cost(self.data_s),
                "log": Cost(self.report_s),
            }
        )


FITTED_TO: Mapping[str, str] = {
    "micro_batch_s": "base: median work of the device on a micro-batch that is not its step's first",
    "update_s": "base: median work of the device on an update",
    "ship_s": "base: median time of a step's first `fwd_bwd` call, before which the device has nothing to do",
    "link_s": "base: median time from the return of a step's first `fwd_bwd` to the arrival of its data",
    "call_s": "base: median time of the call `update`, once it has read what it waits for",
    "fetch_s": "base: median time of `get_metrics` from the moment at which the update has landed",
    "sync_s": "base: median time of `sync_weights`",
    "data_s": "base: median time of dispatch, take, reward, advantages and pack",
    "report_s": "base: median time of log, on_step_end and free",
}
"""The figure of the base schedule that each parameter is set to."""

MEASURED = Parameters(
    micro_batch_s=0.1531,
    update_s=0.0316,
    ship_s=0.0154,
    link_s=0.2002,
    call_s=0.0026,
    fetch_s=0.0005,
    sync_s=0.0172,
    data_s=0.6524,
    report_s=0.0239,
)
"""What `steptrace bench boundary --microbatch-mb 50 --rows 32` measured in its base arm, on two cores of which other
processes took most: times are several times too long. ``--base`` takes those of another measurement."""


def parameters_of(measured: Mapping[str, Any]) -> Parameters:
    """The parameters in the output of `steptrace bench boundary --json`, fitted to its base arm."""
    found = measured["parameters"]
    return Parameters(**{field.name: float(found[field.name]["ms"]) / 1e3 for field in fields(Parameters)})


def outcomes(measured: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What was measured and what is predicted, by arm; all but the base arm are outcomes."""
    return {
        arm: {
            "used": "fitted" if arm == "base" else "outcome",
            **{f"measured_{name}": found[name] for name in _COMPARED},
            **{f"predicted_{name}": measured["virtual"][arm][name] for name in _COMPARED},
        }
        for arm, found in measured["arms"].items()
    }


_COMPARED = ("idle_ms_median", "step_ms_median", "busy_fraction")


IN_FLIGHT = 1
"""Training calls that may be dispatched and not computed: as in the arms on JAX, and fitted to nothing."""


def virtual_boundary(parameters: Parameters, *, micro_batches: int) -> dict[str, Any]:
    """Everything that is said of the boundary in virtual time, for one set of parameters.

    Args:
      parameters: fitted to the base schedule.
      micro_batches: how many a step has.

    Returns:
      ``parameters`` with what each is fitted to, ``trainers`` (by double, by arm), ``claims``, ``feeds``, ``claimed``
      and ``sensitivity``.
    """
    trainers = {name: arms(parameters, micro_batches, make) for name, make in _doubles().items()}
    return {
        "micro_batches": micro_batches,
        "in_flight": IN_FLIGHT,
        "parameters": {
            name: {"ms": value * 1e3, "fitted_to": FITTED_TO[name]} for name, value in asdict(parameters).items()
        },
        "trainers": trainers,
        "feeds": _feeds(parameters, micro_batches),
        "claims": _claims(parameters, micro_batches, trainers),
        "sensitivity": sensitivity(parameters, micro_batches),
        "claimed": claimed_ratio(micro_batches),
    }


def arms(
    parameters: Parameters, micro_batches: int, make: Callable[[], VirtualTrainer], feed: Feed | None = None
) -> dict[str, dict[str, Any]]:
    """The figures of each arm, with a trainer of its own."""
    return {arm: figures(simulated(arm, parameters, micro_batches, make(), feed)) for arm in ARMS}


def simulated(
    arm: str, parameters: Parameters, micro_batches: int, trainer: VirtualTrainer, feed: Feed | None = None
) -> Run:
    """One run of an arm."""
    from steptrace.simulate import simulate

    return simulate(
        plan_of(arm), parameters.durations(), micro_batches=micro_batches, steps=STEPS, trainer=trainer, feed=feed
    )


def figures(run: Run) -> dict[str, Any]:
    """The figures of a run, times in milliseconds."""
    from steptrace.simulate import steady

    waits = [wait * 1e3 for wait in run.device_waits.values()]
    return {
        "idle_ms_median": steady(run.boundary_idle_s()) * 1e3,
        "gap_ms_median": steady(run.boundary_s()) * 1e3,
        "step_ms_median": steady(run.step_s()) * 1e3,
        "busy_fraction": run.busy_fraction(),
        "stages": len(run.stages),
        "latched": run.latched is not None,
        "device_wait_ms": [min(waits), max(waits)] if waits else [],
        "params_digest": run.trained,
        "calls_digest": hashlib.sha256(" ".join(run.calls).encode()).hexdigest(),
    }


def sensitivity(parameters: Parameters, micro_batches: int) -> dict[str, dict[str, Any]]:
    """Under replay: the idle time of the two staged arms and their ratio, each parameter changed by `CHANGE`."""
    found: dict[str, dict[str, Any]] = {"as fitted": _ratio(parameters, micro_batches)}
    for field in fields(parameters):
        value = getattr(parameters, field.name)
        for sign in (-1, 1):
            changed = replace(parameters, **{field.name: value * (1 + sign * CHANGE)})
            found[f"{field.name} {sign * CHANGE:+.0%}"] = _ratio(changed, micro_batches)
    return found


CLAIMED_BEFORE, CLAIMED_AFTER, CLAIMED_WAIT = 6.7, 15.3, 5.45
"""What is claimed of trainer doubles under replay, in units: the boundary's gap with the stage in front of the update,
and behind it, and what the device still had to do (5.4 to 5.5)."""


def claimed_ratio(micro_batches: int) -> dict[str, Any]:
    """What the claimed gaps say of the parameters, and how far they leave them open.

    The gap with the stage in front of the update is the update, the sync and calls; the other one has the shipping of
    the whole call as well, which is sent once the sync is done, in front of fetch and report; the wait is a micro-batch
    without the call. So three sums are known of more parameters, and none of them is a figure of the base schedule.
    """
    hidden = CLAIMED_AFTER - CLAIMED_BEFORE
    met = {}
    for share in (0.5, 0.75, 1.0):
        ship = share * hidden
        parameters = Parameters(
            micro_batch_s=CLAIMED_WAIT + ship,
            update_s=share * CLAIMED_BEFORE,
            ship_s=ship,
            link_s=hidden - ship,
            call_s=0.0,
            fetch_s=1.0,
            sync_s=(1 - share) * CLAIMED_BEFORE,
            data_s=1.0,
            report_s=2.0,
        )
        met[f"ship_s={ship:.2f}, update_s={share * CLAIMED_BEFORE:.2f}"] = {
            "as chosen": _gaps(parameters, micro_batches),
            **{
                f"{name} {sign * CHANGE:+.0%}": _gaps(
                    replace(parameters, **{name: getattr(parameters, name) * (1 + sign * CHANGE)}), micro_batches
                )
                for name in ("micro_batch_s", "update_s", "ship_s", "link_s", "fetch_s", "sync_s", "report_s")
                for sign in (-1, 1)
            },
        }
    return {
        "claimed": {"gap_before": CLAIMED_BEFORE, "gap_after": CLAIMED_AFTER, "device_wait": [5.4, 5.5]},
        "determined": {
            "update_s + sync_s + calls": CLAIMED_BEFORE,
            "ship_s + link_s": hidden,
            "micro_batch_s - ship_s": CLAIMED_WAIT,
        },
        "under_determined": (
            "three sums are claimed and none of the base schedule, so the parameters cannot be fitted to the base: "
            "every split of the sums below meets all three figures, and these are met because they were chosen to be"
        ),
        "met_by": met,
    }


def _gaps(parameters: Parameters, micro_batches: int) -> dict[str, Any]:
    """The gap, work in it included, of the staged arms under replay, in the units of the parameters."""
    from steptrace.simulate import steady

    before, after = (
        simulated(arm, parameters, micro_batches, _doubles()["replay of the first"]())
        for arm in ("staged-before", "staged-after")
    )
    waits = before.device_waits.values()
    return {
        "gap_before": round(steady(before.boundary_s()), 3),
        "gap_after": round(steady(after.boundary_s()), 3),
        "device_wait": round(max(waits, default=0.0), 3),
        "latched": [before.latched is not None, after.latched is not None],
    }


def _ratio(parameters: Parameters, micro_batches: int) -> dict[str, Any]:
    """The staged arms under replay: idle times, gaps, and the ratio of the gaps."""
    before, after = (
        figures(simulated(arm, parameters, micro_batches, _doubles()["replay of the first"]()))
        for arm in ("staged-before", "staged-after")
    )
    return {
        "idle_ms": [before["idle_ms_median"], after["idle_ms_median"]],
        "gap_ms": [before["gap_ms_median"], after["gap_ms_median"]],
        "gap_ratio": before["gap_ms_median"] / after["gap_ms_median"] if after["gap_ms_median"] else None,
        "latched": [before["latched"], after["latched"]],
    }


def _claims(
    parameters: Parameters, micro_batches: int, trainers: Mapping[str, Mapping[str, Mapping[str, Any]]]
) -> dict[str, Any]:
    """What was to be shown, and whether these parameters show it."""
    replay = trainers["replay of the first"]
    slow = replace(parameters, ship_s=1.5 * parameters.micro_batch_s, link_s=0.0)
    bound = arms(slow, micro_batches, _doubles()["replay of none"])
    return {
        "under replay a stage behind the update latches after one stage": replay["staged-after"]["latched"]
        and replay["staged-after"]["stages"] == 1,
        "under replay a stage behind the update hides nothing of the call": replay["staged-after"]["idle_ms_median"]
        >= replay["pipelined"]["idle_ms_median"] - 1e-6,
        "under replay a stage in front of it never latches": not replay["staged-before"]["latched"],
        "under replay a stage in front of it hides (ms)": replay["pipelined"]["idle_ms_median"]
        - replay["staged-before"]["idle_ms_median"],
        "calls that take longer than their work latch": bound["staged-before"]["latched"]
        and bound["staged-before"]["stages"] == 1,
        "every arm of every trainer trains what its base arm trains": all(
            (arm["params_digest"], arm["calls_digest"])
            == (found["base"]["params_digest"], found["base"]["calls_digest"])
            for found in trainers.values()
            for arm in found.values()
        ),
    }


def _feeds(parameters: Parameters, micro_batches: int) -> dict[str, Any]:
    """Two ways of being bound by what feeds the trainer, with the stage in front of the update."""
    from steptrace.testing import SlowFeed

    make = _doubles()["plain"]
    late = SlowFeed(late_s=2 * micro_batches * parameters.micro_batch_s)
    slow = replace(parameters, ship_s=1.5 * parameters.micro_batch_s, link_s=0.0)
    keep = ("stages", "latched", "step_ms_median", "idle_ms_median")
    return {
        name: {key: found[key] for key in keep}
        for name, found in {
            "calls take longer than their work": figures(simulated("staged-before", slow, micro_batches, make())),
            "groups come late": figures(simulated("staged-before", parameters, micro_batches, make(), late)),
        }.items()
    }


def _doubles() -> dict[str, Callable[[], VirtualTrainer]]:
    from steptrace.simulate import VirtualTrainer
    from steptrace.testing import DeviceWaitTrainer, OlderTrainer, ReplayTrainer, TokenWaitTrainer

    return {
        "plain": lambda: bounded(VirtualTrainer()),
        "token wait": lambda: bounded(TokenWaitTrainer()),
        "device wait": lambda: bounded(DeviceWaitTrainer()),
        "older image": lambda: bounded(OlderTrainer()),
        "replay of none": lambda: bounded(ReplayTrainer("none")),
        "replay of the first": lambda: bounded(ReplayTrainer("first")),
        "replay of the last": lambda: bounded(ReplayTrainer("last")),
        "replay of every": lambda: bounded(ReplayTrainer("every")),
    }


def bounded(trainer: VirtualTrainer, in_flight: int = IN_FLIGHT) -> VirtualTrainer:
    """A trainer with that many calls in flight."""
    trainer.in_flight = in_flight
    return trainer


@lru_cache
def plan_of(arm: str, target: str = "inline") -> Plan:
    """An arm's schedule on a target, lowered."""
    from steptrace.lang.reference import resolve
    from steptrace.lower import lower
    from steptrace.passes import run_pipeline

    schedule = run_pipeline(resolve(program_text()), pipeline_of(arm, target)).schedule
    return lower(schedule.program, source=schedule.source)
