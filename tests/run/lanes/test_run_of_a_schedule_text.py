"""A schedule that was written to a file runs as the pipeline that made it, once it is equal to its source."""

from __future__ import annotations

import pytest
from lane_parts import lane_bind, made_by

import steptrace
from steptrace.diag.schedule import MissingOpError, OrderError, UnknownSourceError
from steptrace.diag.validation import NotASourceError
from steptrace.ir import print_program
from steptrace.lang.source import scheduled, source_of
from steptrace.passes import run_pipeline
from steptrace.programs.grpo import grpo
from steptrace.run.api import plan_for
from steptrace.testing.edits import edited

BUILT_IN = "grpo{prompts=3, samples=2, staleness=1, save_every=2}"
STEPS = 4


@steptrace.program(staleness=1)
def own_step(step):
    step.dispatch(prompts=3, samples=2)
    for mb in step.micro_batches(step.pack(step.advantages(step.reward(step.take())))):
        step.fwd_bwd(mb)
    step.update()
    step.sync_weights()
    step.commit()
    step.log(step.get_metrics())


@pytest.fixture
def written(tmp_path):
    def write(program, pipeline, edit=""):
        text = print_program(run_pipeline(program, pipeline).schedule.program)
        path = tmp_path / "fast.st"
        path.write_text(edited(text, edit) if edit else text)
        return str(path)

    return write


def run(program, **options):
    return made_by(program, lane_bind(), steps=STEPS, **options)


@pytest.mark.parametrize("pipeline", ["take-ahead", "defer-metrics", "pipelined-boundary", "async-everything"])
def test_the_source_of_a_built_in_program_is_found(written, pipeline):
    file = written(steptrace.resolve(BUILT_IN), pipeline)
    assert run(file) == run(BUILT_IN) == run(BUILT_IN, pipeline=pipeline)
    assert len(plan_for(file).lanes) == len(plan_for(BUILT_IN, pipeline).lanes)


def test_a_pass_goes_on_from_a_schedule(written):
    file = written(steptrace.resolve(BUILT_IN), "take-ahead")
    assert run(file, pipeline="defer-metrics") == run(BUILT_IN)
    kinds = {op.kind for op in plan_for(file, "defer-metrics").program.ops()}
    assert "start_metrics" in kinds


def test_the_source_of_a_program_of_ones_own_is_given(written):
    file = written(own_step.trace(), "pipelined-boundary")
    with pytest.raises(UnknownSourceError, match="not known") as caught:
        run(file)
    assert "against=" in caught.value.help
    assert run(file, against=own_step) == run(own_step)


def test_a_program_of_ones_own_with_a_built_in_name_is_not_taken_for_it(written):
    @steptrace.program(name="grpo", staleness=1)
    def other(step, prompts=32, samples=8, save_every=10):
        step.dispatch(prompts=3, samples=2)
        for mb in step.micro_batches(step.pack(step.advantages(step.reward(step.take())))):
            step.fwd_bwd(mb)
        step.update()
        step.sync_weights()
        step.commit()

    with pytest.raises(MissingOpError):
        run(written(other.trace(), "take-ahead"))


@pytest.mark.parametrize("pipeline", ["", "defer-metrics"])
def test_an_edit_that_breaks_an_edge_is_refused_before_anything_runs(written, pipeline):
    file = written(steptrace.resolve(BUILT_IN), "pipelined-boundary", "move commit before sync_weights")
    bound = lane_bind()
    with pytest.raises(OrderError, match="`commit` of step k would run before `sync_weights` of step k"):
        steptrace.run(file, bound, steps=2, pipeline=pipeline)
    assert bound["trainer"].calls == []


def test_an_order_is_compared_where_a_source_is_named_and_not_where_none_shows(written):
    file = written(steptrace.resolve(BUILT_IN), "", "move log before commit")
    assert run(file).steps == STEPS, "a program of its own"
    with pytest.raises(OrderError):
        run(file, against=BUILT_IN)


def test_a_schedule_is_no_source(written):
    file = written(steptrace.resolve(BUILT_IN), "take-ahead")
    with pytest.raises(NotASourceError):
        run(BUILT_IN, against=file)


def test_what_shows_a_schedule_is_said(written):
    assert scheduled(grpo.trace()) == ""
    words = {
        "take-ahead": "it runs `dispatch` 1 ahead of its place",
        "defer-metrics": "`start_metrics` is a part of `get_metrics`",
        "fuse-update": "`fwd_bwd` also closes the step",
    }
    for pipeline, said in words.items():
        program = run_pipeline(grpo.trace(staleness=1), pipeline).schedule.program
        assert scheduled(program) == said
        assert source_of(program) == grpo.trace(staleness=1)
