"""A schedule's plan: lanes, what each op waits for on other lanes, and what a target cannot run."""

from __future__ import annotations

from dataclasses import replace

import pytest

import steptrace
from steptrace.diag.binding import NotLowerableError
from steptrace.ir import Flag, Op
from steptrace.lang.reference import resolve
from steptrace.lower import Call, Plan, StreamPlan, lower
from steptrace.passes import run_pipeline


def planned(program, pipeline: str) -> Plan:
    made = run_pipeline(resolve(program) if isinstance(program, str) else program, pipeline).schedule
    return lower(made.program, source=made.source)


def ids(plan: Plan) -> dict[str, list[str]]:
    return {lane.name: [n.op.id if isinstance(n, Call) else n.id for n in lane.nodes] for lane in plan.lanes}


def test_the_lanes_of_the_pipelined_boundary():
    plan = planned("grpo{staleness=1}", "pipelined-boundary")
    lanes = ids(plan)
    assert lanes["packer"] == ["dispatch", "take", "reward", "advantages", "pack", "next_mb.first", "ref_logps.first"]
    assert lanes["host"][:4] == ["on_step_begin", "fwd_bwd.first", "micro_batches", "stage_fwd_bwd"]
    assert [(lane.name, lane.most, lane.least) for lane in plan.lanes] == [("host", 1, 0), ("packer", 1, 1)]
    (loop,) = [node for node in plan.lanes[0].nodes if isinstance(node, StreamPlan)]
    assert (loop.start, loop.ahead, loop.shared, loop.leads) == (1, 0, False, True)
    assert loop.peeled.op.id == "next_mb.first"
    assert {id for id, first in plan.peeled.items() if first.op.id == "next_mb.first"} == {
        "next_mb.first",
        "ref_logps.first",
        "fwd_bwd.first",
        "stage_fwd_bwd",
        "fwd_bwd_staged.first",
        "poll_packed.first",
        "fwd_bwd.first.early",
    }


def test_what_it_waits_for():
    plan = planned("grpo{staleness=1}", "pipelined-boundary")
    holds = {id: [(hold.before, hold.distance) for hold in found] for id, found in plan.holds.items()}
    assert holds["dispatch"] == [("sync_weights", 2)]
    assert holds["take"] == [("free", 2)]
    assert holds["fwd_bwd.first"] == [("ref_logps.first", 0)]
    assert holds["next_mb"] == [("pack", 0)]
    lanes = {op.id: op.lane for op in plan.program.ops()}
    assert all(lanes[id] != lanes[before] for id, found in holds.items() for before, _ in found)


def test_an_op_that_looks_waits_for_nothing():
    plan = planned("grpo{staleness=1}", "pipelined-boundary")
    assert "stage_fwd_bwd" not in plan.holds
    assert "fwd_bwd_staged.first" not in plan.holds
    assert "poll_packed.first" not in plan.holds
    assert "fwd_bwd.first.early" not in plan.holds


def test_a_stream_is_shared_by_two_lanes():
    plan = planned("grpo_stream{staleness=1}", "pipelined-boundary")
    parts = {lane.name: node for lane in plan.lanes for node in lane.nodes if isinstance(node, StreamPlan)}
    assert [call.op.id for call in parts["packer"].calls] == ["stream_mb", "ref_logps"]
    assert [call.op.id for call in parts["host"].calls] == ["fwd_bwd"]
    assert (parts["packer"].leads, parts["host"].leads, parts["host"].shared) == (True, False, True)
    (hold,) = plan.holds["fwd_bwd"]
    assert (hold.before, hold.distance, hold.micro) == ("ref_logps", 0, 0)


def test_rounds_that_run_ahead():
    plan = planned("grpo", "pipeline-micro-batches")
    (loop,) = [node for lane in plan.lanes for node in lane.nodes if isinstance(node, StreamPlan)]
    assert loop.ahead == 1


def test_the_source_is_kept_and_names_the_verbs():
    plan = planned("grpo{staleness=1}", "pipelined-boundary")
    assert plan.base.program == resolve("grpo{staleness=1}")
    assert plan.verbs()["trainer.update"].op.id == "update"
    assert plan.slots == plan.base.slots
    assert plan.ahead == 1


def test_a_pipeline_that_changes_nothing_runs_in_program_order():
    plan = planned("grpo", "take-ahead")
    assert plan.source is None
    assert [lane.name for lane in plan.lanes] == ["host"]


@steptrace.op(takes=("groups",), gives=("groups", "any_left: flag"), reads=["host[k]"], writes=[])
def some(groups):
    return groups, True


def test_a_step_that_may_not_dispatch_is_not_run_ahead():
    """Where a flag decides how many prompts a step draws, no lane can know by itself which step is the last."""

    @steptrace.program(staleness=1)
    def made(step):
        step.dispatch(prompts=2, samples=2)
        groups, any_left = some(step.take())
        batch = step.pack(step.advantages(step.reward(groups)))
        for mb in step.micro_batches(batch):
            step.fwd_bwd(mb)
        step.update()
        metrics = step.get_metrics()
        step.sync_weights()
        step.commit()
        with step.when(any_left):
            step.log(metrics)

    assert planned(made.trace(), "defer-metrics").source is not None
    made_plan = run_pipeline(made.trace(), "defer-metrics").schedule

    def flagged(program):
        body = tuple(
            replace(node, when=Flag("any_left")) if isinstance(node, Op) and node.kind == "dispatch" else node
            for node in program.body
        )
        return replace(program, body=body)

    with pytest.raises(NotLowerableError, match="a lane that runs ahead cannot know which step is the last"):
        lower(flagged(made_plan.program), source=flagged(made_plan.source))
