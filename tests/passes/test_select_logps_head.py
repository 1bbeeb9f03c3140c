"""The log-prob head in a schedule's text: selected as a whole, kept by every pass, and checked against the source."""

from __future__ import annotations

from dataclasses import replace

import pytest

from steptrace.check import check_schedule
from steptrace.check.difference import differences
from steptrace.check.head_law import SelectedHead, head_of
from steptrace.check.proof import prove_equal
from steptrace.check.rewrite import mapped
from steptrace.check.validation import Budget
from steptrace.diag import SteptraceError
from steptrace.ir import ops_of, parse_program, print_program
from steptrace.lang.reference import resolve
from steptrace.lang.source import scheduled, source_of
from steptrace.motion import fuse, split
from steptrace.passes import PASSES, PIPELINES, parse_pipeline, run_pipeline, text_of

SELECT = 'select-logps-head{head=shard_map, bytes=800, logps_bytes=90, reason="sends least, of {8} sets"}'
SELECTED = SelectedHead("shard_map", "sends least, of {8} sets", 800, 90)
SOURCE = resolve("grpo{staleness=1}")
PIPES = [*PIPELINES, "fuse-update", "defer-update", "replay", "stream-micro-batches,pipelined-boundary"]


def marked(pipeline: str, program=SOURCE):
    return run_pipeline(program, pipeline).schedule


def heads(program) -> dict[str, tuple]:
    return {op.id: op.attrs for op in ops_of(program.body) if op.attr("head") is not None}


def test_every_op_that_makes_log_probs_says_its_head_its_bytes_and_why():
    program = marked(SELECT).program
    text = print_program(program)
    assert 'fwd_bwd(%mb.2) {head="shard_map", head_bytes=800, head_reason="sends least, of {8} sets"}' in text
    assert 'ref_logps(%mb) {head="shard_map", head_bytes=90, head_reason="sends least, of {8} sets"}' in text
    assert heads(program).keys() == {"ref_logps", "fwd_bwd"}
    assert head_of(program) == SELECTED
    assert print_program(parse_program(text)) == text


def test_left_open_it_says_so_and_nobody_has_predicted_bytes():
    (attrs,) = set(heads(marked("select-logps-head").program).values())
    assert [name for name, _ in attrs] == ["head", "head_reason"]
    assert dict(attrs)["head"] == "auto"


def test_control_without_the_pass_no_text_has_a_head():
    for pipeline in ("", *PIPES):
        assert "head" not in print_program(marked(pipeline).program)
    assert head_of(SOURCE) is None


@pytest.mark.parametrize("pipeline", PIPES)
def test_before_or_behind_other_passes_the_schedule_is_the_same(pipeline: str):
    before, behind = marked(f"{SELECT},{pipeline}"), marked(f"{pipeline},{SELECT}")
    assert before.program == behind.program
    assert before.reference == behind.reference
    kinds = {"fwd_bwd", "fwd_bwd_staged", "attempt_fwd_bwd", "attempt_staged", "ref_logps", "old_logps"}
    wanted = {op.id for op in ops_of(before.program.body) if op.kind in kinds}
    assert heads(before.program).keys() == wanted
    plain = mapped(before.program, lambda op: replace(op, attrs=tuple(p for p in op.attrs if "head" not in p[0])))
    assert plain == marked(pipeline).program


@pytest.mark.parametrize("name", ["grpo_epochs", "grpo_stream", "reinforce_pp"])
def test_other_steps_have_it_too(name: str):
    program = resolve(name)
    assert heads(marked(SELECT, program).program)
    assert check_schedule(marked(SELECT, program).program, program)


@pytest.mark.parametrize("pipeline", [SELECT, f"{SELECT},pipelined-boundary", f"replay,{SELECT}"])
def test_the_text_is_equal_to_its_source_and_names_it(pipeline: str):
    program = parse_program(print_program(marked(pipeline).program))
    report = prove_equal(program, SOURCE, budget=Budget(runs=20))
    assert any("rounding" in words for words in report.assumed)
    assert scheduled(program)
    assert source_of(program) == SOURCE


def test_control_without_a_head_nothing_is_assumed_of_rounding():
    report = prove_equal(marked("defer-metrics").program, SOURCE, budget=Budget(runs=20))
    assert not any("rounding" in words for words in report.assumed)


def tampered(pipeline: str, old: str, new: str):
    text = print_program(marked(pipeline).program)
    assert text.count(old) >= 1
    return parse_program(text.replace(old, new, 1))


MARK = '{head="shard_map", head_bytes=800, head_reason="sends least, of {8} sets"} '
STAGED = MARK.replace("{head=", '{closes="defer", head=')
REFUSED = {
    "one op has none": (SELECT, f"fwd_bwd(%mb.2) {MARK}", "fwd_bwd(%mb.2) ", "ST203"),
    "another op has none": (SELECT, MARK.replace("800", "90"), "", "ST203"),
    "another head": (SELECT, 'fwd_bwd(%mb.2) {head="shard_map"', 'fwd_bwd(%mb.2) {head="dense"', "ST203"),
    "one arm has none": (
        f"{SELECT},pipelined-boundary",
        f"fwd_bwd_staged(%request) {STAGED}",
        'fwd_bwd_staged(%request) {closes="defer"} ',
        "ST203",
    ),
    "other bytes": (f"{SELECT},pipelined-boundary", "head_bytes=800", "head_bytes=801", "ST203"),
    "no such head": (SELECT, 'head="shard_map"', 'head="sharded"', "ST008"),
    "no such op": (SELECT, "commit()", 'commit() {head="dense"}', "ST008"),
    "fewer bytes than none": (SELECT, "head_bytes=800", "head_bytes=-800", "ST008"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_text_that_was_changed_is_refused(what: str):
    pipeline, old, new, code = REFUSED[what]
    with pytest.raises(SteptraceError) as refused:
        prove_equal(tampered(pipeline, old, new), SOURCE, budget=Budget(runs=20))
    assert refused.value.code == code


def test_a_second_selection_declines_and_so_does_a_step_without_log_probs():
    result = run_pipeline(SOURCE, f"{SELECT},select-logps-head")
    assert [(remark.kind, remark.code) for remark in result.remarks] == [("applied", ""), ("missed", "ST210")]
    assert result.schedule.program == marked(SELECT).program


OPTIONS = {
    "select-logps-head{head=sharded}": "`head` of `select-logps-head` is one of auto, dense, shard_map, not `sharded`",
    "select-logps-head{bytes=-2}": "`bytes` of `select-logps-head` counts bytes, and -1 says that nobody knows",
    'select-logps-head{reason="it\'s"}': "`reason` of `select-logps-head` is one line without quotation marks",
}


@pytest.mark.parametrize("pipeline", OPTIONS)
def test_options_that_mean_nothing(pipeline: str):
    with pytest.raises(SteptraceError, match="ST285") as refused:
        parse_pipeline(pipeline)
    assert OPTIONS[pipeline] in refused.value.message


def test_a_reason_is_written_in_quotes_and_read_back():
    (one,) = parse_pipeline(SELECT)
    assert text_of(one) == SELECT
    assert parse_pipeline(f"dce,{text_of(one)} , dce")[1] == one
    assert PASSES[one.name]() == parse_pipeline("select-logps-head")[0]


def test_it_is_of_the_class_that_is_recompiled_and_can_be_derived_again():
    made = marked(f"{SELECT},take-ahead")
    assert [step.obligation.class_ for step in made.trail if step.motion == "select_head"] == ["recompiled"]
    space: dict = {}
    exec(made.as_python(), space)
    assert space["derive"](SOURCE).program == made.program


def test_what_was_split_keeps_its_head_when_it_is_joined():
    begun = marked(SELECT)
    apart = split(begun, "fwd_bwd", law="settle").schedule
    assert heads(apart.program)["attempt_fwd_bwd"] == heads(begun.program)["fwd_bwd"]
    assert fuse(apart, "settle", law="settle").schedule.program == begun.program


def test_a_comparison_tells_the_head():
    changes = [f"{change.subject} {change.words}" for change in differences(SOURCE, marked(SELECT).program)]
    assert any("`fwd_bwd`" in line and "head=shard_map, was none" in line for line in changes)
