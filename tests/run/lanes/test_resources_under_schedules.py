"""Users' ops that keep values in resources: a schedule runs them in an order that reads what program order reads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from lane_parts import StagingTrainer, parts

import steptrace

steptrace.resource("totals", "cell", doc="the sum of all rewards up to a step")


@steptrace.op(takes=("groups",), gives="groups", reads=["host[k]", "totals[k-1]"], writes=["totals[k]"])
def chained(groups, *, resources):
    total = (resources.read("totals[k-1]") or 0) + sum(float(group.rewards.sum()) for group in groups)
    resources.write("totals[k]", total)
    return [replace(group, rewards=group.rewards + np.float32(index * total)) for index, group in enumerate(groups)]


@steptrace.op(takes=("metrics",), gives="metrics", reads=["totals[k]"], writes=[])
def with_total(metrics, *, resources):
    return {**metrics, "total": resources.read("totals[k]")}


@steptrace.program(staleness=1, saves="may_fail_late")
def chained_steps(step):
    step.dispatch(prompts=3, samples=2)
    batch = step.pack(step.advantages(chained(step.reward(step.take())), estimator="reinforce_pp"))
    for mb in step.micro_batches(batch):
        step.fwd_bwd(mb)
    step.update()
    metrics = step.get_metrics()
    step.sync_weights()
    step.commit()
    step.log(with_total(metrics))


def made(pipeline, **options):
    bound = parts(trainer=StagingTrainer())
    return steptrace.run(chained_steps, bound, steps=5, pipeline=pipeline, stall_s=30.0, **options)


@pytest.mark.parametrize("pipeline", ["pipelined-boundary", "async-everything", "take-ahead"])
def test_a_schedule_reads_what_program_order_reads(pipeline):
    plain, derived = made(""), made(pipeline, sanitize=True)
    assert derived.params_digest == plain.params_digest
    assert [record["total"] for record in derived.records] == [record["total"] for record in plain.records]


def test_control_totals_add_up_over_the_steps():
    totals = [record["total"] for record in made("").records]
    assert len(set(totals)) == 5
    assert totals == sorted(totals)
