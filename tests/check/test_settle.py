"""The law `settle`: what waits for a settling, what does not, and that each micro-batch counts once."""

from __future__ import annotations

import re
from functools import lru_cache

import pytest

from steptrace.check import check_schedule
from steptrace.check.edges import edges_of
from steptrace.check.validation import Budget, validate
from steptrace.diag import SteptraceError
from steptrace.ir import Program, parse_program, print_program, verify
from steptrace.lang.reference import resolve
from steptrace.motion import Schedule
from steptrace.passes import run_pipeline
from steptrace.testing.edits import edited
from steptrace.testing.judge import judge
from steptrace.testing.runs import source_of
from steptrace.testing.soundness import waits_between

FEW = Budget(runs=100)
REPLAYED = "pipelined-boundary-replayed"


@lru_cache
def derived(pipeline: str, name: str = "grpo{staleness=1}") -> Schedule:
    return run_pipeline(resolve(name), pipeline).schedule


def edge(pipeline: str, before: str, after: str) -> list[tuple[int, int | None, str]]:
    """The edges between two ops: steps, micro-batches, what about."""
    found = edges_of(derived(pipeline).reference)
    return [(one.distance, one.micro, one.what) for one in found if (one.before, one.after) == (before, after)]


def broken(pipeline: str, *edits: str) -> Program:
    return parse_program(edited(print_program(derived(pipeline).program), "\n".join(edits)))


def test_the_next_call_is_sent_without_the_flag_and_the_one_after_waits():
    assert edge("replay", "settle", "attempt_fwd_bwd") == [
        (0, 2, "trainer.attempts"),
        (1, None, "trainer.attempts"),
    ]
    assert edge("replay{late=0}", "settle", "attempt_fwd_bwd")[0] == (0, 1, "trainer.attempts")
    assert edge("replay{late=3}", "settle", "attempt_fwd_bwd")[0] == (0, 4, "trainer.attempts")


def test_settlings_add_to_the_accumulator_in_the_order_of_the_calls():
    assert edge("replay", "attempt_fwd_bwd", "settle") == [(0, 0, "trainer.attempts")]
    assert (0, 1, "trainer.attempts") in edge("replay", "settle", "settle")


@pytest.mark.parametrize("after", ["update", "free"])
def test_what_waits_for_the_last_settling(after: str):
    (found,) = edge("replay", "settle", after)
    assert found[:2] == (0, None)


def test_a_deferred_update_and_the_slot_wait_for_it_too():
    assert edge(REPLAYED, "settle", "apply_deferred_update")
    assert edge(REPLAYED, "settle.first", "stage_fwd_bwd") == [(1, None, "trainer.staged")]
    assert edge(REPLAYED, "settle.first", "free")


def test_control_shipping_waits_for_no_settling_but_that_of_the_slot():
    assert edge(REPLAYED, "settle", "stage_fwd_bwd") == []
    assert edge("pipelined-boundary", "fwd_bwd", "free") == []


@pytest.mark.parametrize(
    ("name", "pipeline"),
    [
        ("grpo{staleness=1}", "replay{late=0}"),
        ("grpo{staleness=1}", "replay{late=2}"),
        ("grpo{staleness=1}", "take-ahead,replay"),
        ("grpo{staleness=1}", "replay,pipelined-boundary-unstaged"),
        ("grpo{staleness=1}", "replay,pipelined-boundary-staged-after"),
        ("grpo{staleness=1}", "replay,pipelined-boundary,pipeline-micro-batches"),
        ("grpo_stream{staleness=1}", "pipelined-boundary-replayed,pipeline-micro-batches"),
    ],
)
def test_whatever_is_derived_equals_its_source(name: str, pipeline: str):
    schedule = derived(pipeline, name)
    read = parse_program(print_program(schedule.program))
    verify(read)
    assert check_schedule(read, schedule.source) == schedule.reference
    report = validate(read, schedule.source, budget=FEW)
    assert report.ok, str(report)


def test_the_calls_that_the_trainer_gets_are_those_of_the_source():
    source = source_of(derived(REPLAYED).reference)
    schedule = derived(REPLAYED).program
    assert judge(source, schedule, waits_between(schedule, derived(REPLAYED).reference)).equal


def test_control_without_the_waits_for_the_settling_the_judge_sees_it():
    source, schedule = source_of(derived("replay").reference), derived("replay").program
    waits = [wait for wait in waits_between(schedule, derived("replay").reference) if wait.before != "settle"]
    assert not judge(source, schedule, waits).equal


STAGED_TOO_EARLY = ('in settle.first replace "lane=trainer" with "lane=host"', "move stage_fwd_bwd before settle.first")


def test_runs_show_a_rerun_that_reads_the_staged_micro_batch():
    program = broken(REPLAYED, *STAGED_TOO_EARLY)
    report = validate(program, resolve("grpo{staleness=1}"), budget=FEW, layers=("translation",))
    assert report.counterexample is not None
    assert re.search(
        r"a rerun in settle\.first@\((\d),0\) would find ref_logps@\((\d),0\), not what its attempt found", str(report)
    ).groups() in {("0", "1"), ("1", "2")}


def test_control_a_rerun_that_reads_its_own_is_no_difference():
    program = broken(REPLAYED, STAGED_TOO_EARLY[0])
    assert validate(program, resolve("grpo{staleness=1}"), budget=FEW).ok


UPDATED_TOO_EARLY = ('in settle replace "lane=trainer" with "lane=host"', "move update before micro_batches")


@pytest.mark.parametrize("layer", ["translation", "crash"])
def test_runs_show_an_update_before_the_settling(layer: str):
    program = broken("replay", *UPDATED_TOO_EARLY)
    assert not validate(program, resolve("grpo{staleness=1}"), budget=FEW, layers=(layer,)).ok


def test_a_settling_without_its_attempt_is_not_the_whole_call():
    program = broken("replay", "drop attempt_fwd_bwd")
    report = validate(program, resolve("grpo{staleness=1}"), budget=FEW, layers=("coverage",))
    assert "only `settle` runs" in str(report)


def test_a_step_that_trains_in_epochs_is_left_alone():
    result = run_pipeline(resolve("grpo_epochs{staleness=1}"), "replay")
    (remark,) = result.remarks
    assert remark.kind == "missed"
    assert "moved as a whole" in remark.message


@pytest.mark.parametrize(("pipeline", "code"), [("replay{late=-1}", "ST285"), ("replay{late=x}", "ST285")])
def test_options_that_mean_nothing(pipeline: str, code: str):
    with pytest.raises(SteptraceError) as raised:
        run_pipeline(resolve("grpo"), pipeline)
    assert raised.value.code == code


def test_a_second_replay_finds_nothing_to_split():
    (remark,) = [one for one in run_pipeline(resolve("grpo"), "replay,replay").remarks if one.kind == "missed"]
    assert "is settled already" in remark.message
