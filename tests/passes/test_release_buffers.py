"""`release-buffers`: where it stands in a pipeline, what it declines, and how large a ring has to be."""

from __future__ import annotations

import pytest

from steptrace.check import check_schedule
from steptrace.diag import SteptraceError
from steptrace.diag.motion import PassOptionError
from steptrace.ir import parse_program, print_program
from steptrace.lang.reference import resolve
from steptrace.lower import lower
from steptrace.passes import PIPELINES, PipelineResult, run_pipeline
from steptrace.simulate import Cost, Durations, simulate
from steptrace.testing.edits import edited

NAMES = ("grpo{staleness=1}", "grpo_stream{staleness=1}", "reinforce_pp{staleness=1}")


def missed(result: PipelineResult) -> list[str]:
    return [remark.message for remark in result.remarks if remark.kind == "missed"]


def releases(result: PipelineResult) -> dict[str, str]:
    """The releases of a schedule, with the lanes that issue them."""
    return {op.id: op.lane for op in result.schedule.program.ops() if op.kind == "release"}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("pipeline", [*PIPELINES, "stream-micro-batches,take-ahead", "fuse-update", "replay"])
def test_it_may_come_first_or_last_and_takes_nothing_from_the_others(name: str, pipeline: str):
    plain = run_pipeline(resolve(name), pipeline)
    for text in (f"release-buffers,{pipeline}", f"{pipeline},release-buffers"):
        found = run_pipeline(resolve(name), text)
        assert missed(found) == missed(plain)
        peeled = {"release.first"} if any(op.micro == 0 for op in found.schedule.program.ops()) else set()
        assert releases(found) == dict.fromkeys(("release", *peeled), "link")


def test_the_pass_is_applied_once():
    (why,) = missed(run_pipeline(resolve("grpo"), "release-buffers,release-buffers"))
    assert "are given back already" in why


def test_a_loop_that_is_moved_as_a_whole_keeps_its_micro_batches():
    result = run_pipeline(resolve("grpo_epochs"), "release-buffers")
    (why,) = missed(result)
    assert "inside loop `repeat`, which is moved as a whole" in why
    assert releases(result) == {}


@pytest.mark.parametrize("ring", [-1, 0, 1, 2])
def test_a_ring_without_a_buffer_for_the_loop_is_none(ring: int):
    with pytest.raises(PassOptionError, match="counts buffers, at least 3"):
        run_pipeline(resolve("grpo"), f"release-buffers{{ring={ring}}}")


def test_a_ring_that_is_too_small_is_refused_with_the_size_that_is_needed():
    result = run_pipeline(resolve("grpo"), "pipeline-micro-batches,release-buffers{ring=3}")
    (remark,) = (remark for remark in result.remarks if remark.kind == "missed")
    assert remark.code == "ST292"
    assert remark.message == "4 buffers have to be in use at a time, and the ring has 3"
    assert releases(result) == {}


def test_control_with_one_more_it_is_not():
    assert missed(run_pipeline(resolve("grpo"), "pipeline-micro-batches,release-buffers{ring=4}")) == []


def test_what_would_need_a_larger_ring_is_declined_behind_it():
    (why,) = missed(run_pipeline(resolve("grpo"), "release-buffers{ring=3},pipeline-micro-batches"))
    assert "`buffers.loop`, which holds 1 at a time" in why
    assert missed(run_pipeline(resolve("grpo"), "release-buffers{ring=4},pipeline-micro-batches")) == []


def test_a_text_whose_ring_is_made_smaller_would_hang_and_is_refused():
    schedule = run_pipeline(resolve("grpo"), "release-buffers,pipeline-micro-batches").schedule
    text = edited(print_program(schedule.program), 'in resource buffers.loop replace "fifo(2)" with "fifo(1)"')
    with pytest.raises(SteptraceError, match=r"`buffers\.loop` would have to hold more than 1 entry") as caught:
        check_schedule(parse_program(text), resolve("grpo"))
    assert caught.value.code == "ST206"
    check_schedule(parse_program(print_program(schedule.program)), resolve("grpo"))


COSTS = Durations(
    {
        "fwd_bwd": Cost(0.001, 0.1, 0.02),
        "ref_logps": Cost(0.001, 0.01),
        "update": Cost(0.001, 0.02),
        "pack": Cost(0.0, 0.02),
        "dispatch": Cost(0.001, 0.05),
    }
)


def seconds(pipeline: str) -> float:
    source = resolve("grpo{staleness=1}")
    program = run_pipeline(source, pipeline).schedule.program
    events = simulate(lower(program, source=source), COSTS, micro_batches=(3,) * 8).events
    return max(event.end for event in events)


def test_with_the_usual_ring_the_boundary_is_as_fast_as_without():
    assert seconds("release-buffers,pipelined-boundary") == seconds("pipelined-boundary")


def test_control_a_ring_of_three_keeps_the_trainer_waiting():
    assert seconds("release-buffers{ring=3},pipelined-boundary") > 1.05 * seconds("pipelined-boundary")


def test_in_virtual_time_a_release_comes_when_the_last_reader_is_done():
    source = resolve("grpo{staleness=1}")
    program = run_pipeline(source, "release-buffers,pipelined-boundary").schedule.program
    events = simulate(lower(program, source=source), COSTS, micro_batches=(3,) * 4).events
    done = {
        (event.step, event.micro): event.done
        for event in events
        if event.kind in ("fwd_bwd", "fwd_bwd_staged") and event.done is not None
    }
    freed = {(event.step, event.micro): event.end for event in events if event.kind == "release"}
    assert len(freed) == 12
    assert all(freed[key] >= done[key] for key in freed)
