"""Assertions for users' tests, each with what makes it fail."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import steptrace
from steptrace.ir import print_program
from steptrace.passes import run_pipeline
from steptrace.programs import NAMES, load
from steptrace.testing import assert_dump, assert_equivalent, assert_refused, pipelines
from steptrace.testing.edits import edited
from steptrace.testing.expected import UPDATE, UpdateInCiError


@steptrace.program
def tiny(step):
    step.dispatch(prompts=4, samples=2)
    for mb in step.micro_batches(step.pack(step.advantages(step.reward(step.take())))):
        step.fwd_bwd(mb)
    step.update()
    metrics = step.get_metrics()
    step.sync_weights()
    step.commit()
    step.log(metrics)


NEST = """\
program tiny
before
  initial_sync: sync_weights
step k
  on_step_begin
  dispatch
  take
  reward
  advantages
  pack
  loop micro_batches: m in %batch
    next_mb
    fwd_bwd
  update
  get_metrics
  sync_weights
  commit
  log
  free
"""


def test_a_schedule_and_its_source_are_equivalent_either_way_round():
    schedule = run_pipeline(tiny.trace(), "defer-metrics").schedule
    assert assert_equivalent(schedule, tiny).ok
    assert assert_equivalent(tiny, schedule).ok


def test_what_differs_is_shown_with_the_broken_edge():
    text = edited(print_program(tiny.trace()), "move commit before sync_weights")
    with pytest.raises(AssertionError, match=r"not equal:\nerror\[ST204\]: `commit` of step k would run before"):
        assert_equivalent(text, tiny)


def test_a_pass_that_declines_is_refused_and_its_words_are_returned():
    words = assert_refused(tiny, "take-ahead", code="ST283")
    assert "uses the rollout weights that `sync_weights` of step k publishes" in words
    assert assert_refused("grpo", "no-such-pass", code="ST302").startswith("error[ST302]")


def test_what_is_applied_is_not_refused():
    with pytest.raises(AssertionError, match="all of it was applied"):
        assert_refused(tiny, "defer-metrics", code="ST283")
    with pytest.raises(AssertionError, match=r"is not refused with ST204.*\n*missed\[ST283\]"):
        assert_refused(tiny, "take-ahead", code="ST204")
    with pytest.raises(AssertionError, match="is refused with ST302, not ST283"):
        assert_refused(tiny, "no-such-pass", code="ST283")


def test_a_dump_is_compared_with_a_text_or_a_file(tmp_path: Path):
    assert_dump(tiny, NEST, view="nest")
    file = tmp_path / "tiny.st"
    file.write_text(print_program(tiny.trace()))
    assert_dump(tiny, file)
    with pytest.raises(AssertionError, match=r"(?s)another nest of the program.*-  update when\(every 2\)\n\+  update"):
        assert_dump(tiny, NEST.replace("  update", "  update when(every 2)"), view="nest")


def test_a_file_is_rewritten_on_request_but_not_in_ci(tmp_path: Path, monkeypatch):
    file = tmp_path / "tiny.nest"
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv(UPDATE, "1")
    assert_dump(tiny, file, view="nest")
    assert file.read_text() == NEST
    monkeypatch.setenv("CI", "true")
    with pytest.raises(UpdateInCiError):
        assert_dump(tiny, file, view="nest")


def test_control_a_file_that_is_missing_is_not_expected_to_be_empty(tmp_path: Path, monkeypatch):
    monkeypatch.delenv(UPDATE, raising=False)
    with pytest.raises(AssertionError):
        assert_dump(tiny, tmp_path / "missing.st")


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(NAMES), st.integers(0, 2), pipelines())
def test_any_pipeline_leaves_any_program_equal_or_says_why_not(name: str, staleness: int, pipeline: str):
    result = run_pipeline(load(name).trace(staleness=staleness), pipeline)
    assert all(remark.code for remark in result.remarks if remark.kind == "missed")
