"""Differences of programs and schedules, op by op."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

from steptrace.check.difference import differences
from steptrace.ir import Program, parse_program, print_program
from steptrace.lang.reference import resolve
from steptrace.passes import run_pipeline
from steptrace.programs import NAMES
from steptrace.testing.edits import edited
from steptrace.testing.strategies import programs

PLAIN = resolve("grpo{staleness=1}")


def derived(pipeline: str, program: Program = PLAIN) -> Program:
    return run_pipeline(program, pipeline).schedule.program


def told(before: Program, after: Program) -> list[tuple[str, str]]:
    return [tuple(change) for change in differences(before, after)]


def hand(edit: str) -> Program:
    return parse_program(edited(print_program(PLAIN), edit))


BOUNDARY = [
    ("resource host", "holds 2, was any number"),
    ("`next_mb.first`", "micro-batch 0 of `next_mb`, taken out of the loop"),
    ("`ref_logps.first`", "micro-batch 0 of `ref_logps`, taken out of the loop"),
    (
        "`fwd_bwd.first`, `stage_fwd_bwd`, `fwd_bwd_staged.first`, `poll_packed.first`, `fwd_bwd.first.early`",
        "micro-batch 0 of `fwd_bwd`, taken out of the loop, in parts",
    ),
    ("`get_metrics`", "split into `start_metrics`, `fetch_metrics`"),
    ("loop micro_batches", "starts with micro-batch 1, was 0"),
    (
        "`dispatch`, `take`, `reward`, `advantages`, `pack`, `next_mb.first`, `ref_logps.first`",
        "1 step ahead; on lane packer, was host",
    ),
    ("`on_step_begin`", "now after `ref_logps.first`"),
    ("`fwd_bwd.first`", "when not %staged and not %packed"),
    ("`stage_fwd_bwd`", "now after loop micro_batches; 1 step ahead"),
    ("`apply_deferred_update`", "in place of `update`"),
    ("`fwd_bwd_staged.first`", "now after `commit`; 1 step ahead; when %staged"),
    ("`poll_packed.first`", "now after `fwd_bwd_staged.first`; 1 step ahead; when not %staged"),
    ("`fwd_bwd.first.early`", "now after `poll_packed.first`; 1 step ahead; when not %staged and %packed"),
    ("`fetch_metrics`", "now after `fwd_bwd.first.early`"),
    ("`fwd_bwd`", "closes=defer, was none"),
]


def test_the_pipelined_boundary_beside_its_source():
    assert told(PLAIN, derived("pipelined-boundary")) == BOUNDARY


def test_as_few_ops_as_possible_are_said_to_have_moved():
    assert told(PLAIN, hand("move commit before sync_weights")) == [("`commit`", "now after `save_checkpoint`")]
    assert told(PLAIN, hand("move on_step_begin after free")) == [("`on_step_begin`", "now after `free`")]
    assert told(PLAIN, hand("move free before on_step_begin")) == [("`free`", "now first of the step")]


@pytest.mark.parametrize(
    ("edit", "change"),
    [
        (
            'in take replace "lane=host" with "lane=packer shift=+2"',
            ("`take`", "2 steps ahead; on lane packer, was host"),
        ),
        ("drop log", ("`log`", "left out")),
        ('in dispatch replace "prompts=32" with "prompts=16"', ("`dispatch`", "prompts=16, was 32")),
        ('in save_checkpoint replace "every 10" with "every 5"', ("`save_checkpoint`", "when every 5")),
        ('in contract replace "empty=skip" with "empty=error"', ("contract", "empty=error, was skip")),
        ('in program replace "samples=8" with "samples=4"', ("parameter samples", "4, was 8")),
    ],
)
def test_what_a_hand_changed(edit: str, change: tuple[str, str]):
    assert change in told(PLAIN, hand(edit))


def test_an_update_that_is_fused_into_the_last_call_and_back():
    fused = derived("fuse-update")
    assert told(PLAIN, fused) == [
        ("`update`", "done by the last call of `fwd_bwd`"),
        ("`fwd_bwd`", "closes=update, was none"),
    ]
    words = "an op of its own, was done by the last call of `fwd_bwd`; now after loop micro_batches"
    assert told(fused, PLAIN) == [("`update`", words), ("`fwd_bwd`", "closes=none, was update")]


def test_two_schedules_of_one_program():
    before, after = derived("pipelined-boundary"), derived("pipelined-boundary-staged-after")
    assert [words for _, words in told(before, after)] != []
    assert not any("taken out of the loop" in words for _, words in told(before, after)), "both have that"


@pytest.mark.parametrize("name", NAMES)
def test_control_a_program_does_not_differ_from_its_text(name: str):
    program = derived("pipelined-boundary", resolve(f"{name}{{staleness=1}}"))
    assert told(program, parse_program(print_program(program))) == []


@settings(max_examples=40, deadline=None)
@given(programs())
def test_a_random_program_differs_from_one_with_an_op_less_and_not_from_itself(program: Program):
    assert told(program, program) == []
    assert told(program, replace(program, body=program.body[:-1])) != []
