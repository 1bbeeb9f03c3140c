"""A lowered plan in virtual time: discrete events, deterministic, without threads and without jax.

``simulate(plan, durations, micro_batches=..., steps=...)`` runs the plan that the executor runs, with durations
instead of work, and gives every instance with its times, what each device did, and figures of it.
"""

from steptrace.simulate.durations import Cost, Durations
from steptrace.simulate.machine import LINK
from steptrace.simulate.record import TRAINER, Event, Run, Span, idle_between, steady
from steptrace.simulate.service import Rollout
from steptrace.simulate.simulator import LATCH_S, simulate
from steptrace.simulate.spread import ALL, Spread, varying
from steptrace.simulate.state import Feed, MicroBatch
from steptrace.simulate.trainer import Clock, Verb, VirtualTrainer

__all__ = [
    "ALL",
    "LATCH_S",
    "LINK",
    "TRAINER",
    "Clock",
    "Cost",
    "Durations",
    "Event",
    "Feed",
    "MicroBatch",
    "Rollout",
    "Run",
    "Span",
    "Spread",
    "Verb",
    "VirtualTrainer",
    "idle_between",
    "simulate",
    "steady",
    "varying",
]
