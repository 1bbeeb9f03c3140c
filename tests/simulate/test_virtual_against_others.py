"""Runs in virtual time against what is derived or run otherwise: the order of lanes, real runs, random pipelines."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from fakes import parts
from virtual_plans import PIPES, plan_of

import steptrace
from steptrace.diag import SteptraceError
from steptrace.ir import ALWAYS
from steptrace.passes import PASSES
from steptrace.run.data.packing import Packer
from steptrace.simulate import Cost, Durations, Run, VirtualTrainer, simulate
from steptrace.simulate.trainer import CALLED_IN_VIRTUAL_TIME
from steptrace.testing import OlderTrainer, RealTimeTrainer, ReplayTrainer, TokenWaitTrainer, UpdatesAnywayTrainer
from steptrace.testing.unrolled import sheet_of, stops


def varied(seed: int) -> Durations:
    """Times that differ from instance to instance."""
    return Durations(
        varying=lambda op, step, micro, cost: Cost(
            *random.Random(f"{seed} {op.id} {step} {micro}").choices((0.0, 0.1, 1.0, 7.0), k=3)
        )
    )


LOOKING = ("next_mb", "stage_fwd_bwd", "poll_packed")
"""Kinds that look whether there is a micro-batch, and so are called also where there is none."""


def by_lane(run: Run) -> dict[str, list[tuple[str, int, int | None]]]:
    """What each lane ran between prologue and epilogue, but for what looks."""
    found: dict[str, list[tuple[str, int, int | None]]] = {}
    for event in run.events:
        if 0 <= event.step < run.steps and event.kind not in LOOKING:
            found.setdefault(event.lane, []).append((event.op, event.step, event.micro))
    return found


@pytest.mark.parametrize("pipeline", PIPES)
def test_each_lane_runs_its_instances_in_the_order_in_which_they_are_rolled_out(pipeline: str):
    plan, counts = plan_of(pipeline), (2, 0, 1, 3)
    run = simulate(plan, varied(1), micro_batches=counts)
    ops = {op.id: op for op in plan.program.ops() if op.kind not in LOOKING}
    rolled: dict[str, list[tuple[str, int, int | None]]] = {}
    for id, step, path in stops(sheet_of(plan.program), counts):
        if path is not None and id in ops:
            rolled.setdefault(ops[id].lane, []).append((id, step, path[-1] if path else None))
    ran = by_lane(run)
    for lane, instances in rolled.items():
        there = set(ran[lane])
        assert ran[lane] == [instance for instance in instances if instance in there]
        assert {instance for instance in instances if ops[instance[0]].when == ALWAYS} <= there


class Recorded:
    """Notes the verbs that are called of a double, whoever calls them."""

    def __init__(self) -> None:
        self.called: list[str] = []
        super().__init__()

    def __getattribute__(self, name: str):
        found = object.__getattribute__(self, name)
        return _noted(self, name, found) if name in CALLED_IN_VIRTUAL_TIME and found is not None else found


def _noted(double: Recorded, name: str, verb: Callable) -> Callable:
    def noting(*args, **how):
        double.called.append(name)
        return verb(*args, **how)

    return noting


KINDS = {"plain": VirtualTrainer, "token": TokenWaitTrainer, "older": OlderTrainer, "anyway": UpdatesAnywayTrainer}
GRPO = "grpo{staleness=1,prompts=4,samples=2,save_every=100}"


@pytest.mark.parametrize("pipeline", ["", "fuse-update", "defer-update", "defer-metrics"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_trainer_gets_the_same_calls_as_in_a_real_run(kind: str, pipeline: str):
    # Without a stage, whose flag depends on how fast things are, nothing about the calls is left to chance.
    trainer = RealTimeTrainer(KINDS[kind]())
    real = steptrace.run(
        GRPO, parts(trainer=trainer, packer=Packer(rows=2, length=16, pad_id=0)), steps=3, pipeline=pipeline
    )
    counts = [int(record["micro_batches"]) for record in real.records]
    double = type("Noted", (Recorded, KINDS[kind]), {})()
    simulate(plan_of(pipeline, GRPO), varied(0), micro_batches=counts, trainer=double)
    assert double.called == trainer.called[:-1]  # a real run ends with the weights, for its digest


@pytest.mark.parametrize("seed", range(16))
def test_random_pipelines_train_what_the_program_trains(seed: int):
    rng = random.Random(seed)
    program = rng.choice(["grpo{staleness=1}", "grpo_stream{staleness=1}", "grpo", "grpo_epochs{staleness=1}"])
    pipeline = ",".join(rng.sample(sorted(PASSES), rng.randint(1, 6)))
    try:
        plan = plan_of(pipeline, program)
    except SteptraceError:
        pytest.skip("this pipeline is refused")
    counts, overflows = rng.choices(range(6), k=5), rng.choice(["none", "first", "every"])
    runs = [
        simulate(one, varied(seed), micro_batches=counts, trainer=ReplayTrainer(overflows)) for one in (plan, plan.base)
    ]
    assert runs[0].calls == runs[1].calls
    assert runs[0].trained == runs[1].trained
