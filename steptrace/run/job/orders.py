"""The step in two orders that train the same, and one that is refused: what the end of a job shows."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steptrace.diag.base import SteptraceError
from steptrace.ir import Op, Program
from steptrace.lang.source import scheduled
from steptrace.motion import hoist
from steptrace.passes import run_pipeline
from steptrace.run.api import run
from steptrace.run.job.progress import Show

STEPS = 3
"""Steps of each order."""

BASE, DERIVED = "one-step-off{staleness=1}", "pipelined-boundary"
"""Rollouts one update older, so that the next step's can be made while this one trains; and what is made of that."""


@dataclass(frozen=True, slots=True)
class Order:
    """A run of the step in one order.

    Attributes:
      pipeline: the passes that made the order.
      params, calls: digests of the parameters and of the trainer's calls.
      step_ms: milliseconds a step, all in all.
    """

    pipeline: str
    params: str
    calls: str
    step_ms: float


def ran_in_orders(program: Program, bind: Mapping[str, Any], *, seed: int, target: str) -> tuple[Order, ...]:
    """Run a few steps in the order of the program and in a derived one, each from where the trainer stands.

    The trainer is set back behind each run; nothing is written that stays.
    """
    found, trainer = [], bind["trainer"]
    with tempfile.TemporaryDirectory() as folder:
        start = Path(folder) / "start"
        trainer.save_checkpoint(start)
        for pipeline in (BASE, f"{BASE},{DERIVED}"):
            begun = time.perf_counter()
            result = run(program, bind, steps=STEPS, seed=seed, pipeline=pipeline, target=target)
            spent = (time.perf_counter() - begun) * 1e3 / STEPS
            found.append(Order(pipeline, result.params_digest, result.calls_digest, spent))
            trainer.restore_checkpoint(start)
    return tuple(found)


def refused_order(program: Program) -> str:
    """What is said to an order that counts a step as trained before its weights are out; "" where none is refused."""
    schedule = run_pipeline(program, f"{BASE},{DERIVED}").schedule
    ops = {node.kind: node.id for node in schedule.program.body if isinstance(node, Op)}
    if not {"sync_weights", "commit"} <= ops.keys():
        return ""
    try:
        hoist(schedule, ops["commit"], above=ops["sync_weights"])
    except SteptraceError as error:
        return str(error)
    return ""


def show_orders(show: Show, program: Program, bind: Mapping[str, Any], *, seed: int, target: str) -> None:
    """Run the step in two orders and show that they train the same; then show an order that is refused, and why."""
    if scheduled(program):
        return
    plain, derived = ran_in_orders(program, bind, seed=seed, target=target)
    same = (plain.params, plain.calls) == (derived.params, derived.calls)
    show.say(f"\nthe step in two orders, {STEPS} steps each from the trained model (rollouts one update older):")
    for name, order in (("as it is written", plain), (DERIVED, derived)):
        figures = f"params {order.params[:12]}  calls {order.calls[:12]}  {order.step_ms:7.1f} ms a step"
        show.say(f"  {name:<20}{figures}")
    show.say("  the same parameters and calls, bit for bit" if same else "  NOT THE SAME")
    refused = refused_order(program)
    if refused:
        show.say("and an order that would count a step as trained before its weights are out:")
        show.say("\n".join(f"  {line}" for line in refused.splitlines()))
