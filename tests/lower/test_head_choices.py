"""Which head makes log-probs, by what the parts have: as it was selected, or all logits with the reason told."""

from __future__ import annotations

import pytest

from steptrace.lang.reference import resolve
from steptrace.lower import lower
from steptrace.lower.choices import choices, head_choices, head_remarks
from steptrace.passes import run_pipeline

PLAIN = frozenset({"trainer.fwd_bwd", "trainer.update", "trainer.get_metrics", "trainer.weights"})
BOTH = PLAIN | {"logps_head", "reference.logps_head"}


def plan(pipeline: str):
    made = run_pipeline(resolve("grpo{staleness=1}"), pipeline).schedule
    return lower(made.program, source=made.source)


def told(head: str, able: frozenset[str], more: str = "") -> list[str]:
    return [str(choice) for choice in head_choices(plan(f"select-logps-head{{head={head}}}{more}"), able)]


def test_parts_that_have_the_head_take_it():
    assert told("shard_map", BOTH) == ["ref_logps: shard_map", "fwd_bwd: shard_map"]
    assert told("auto", BOTH) == ["ref_logps: shard_map", "fwd_bwd: shard_map"]


def test_parts_that_lack_it_make_all_logits_and_the_plan_says_why():
    assert told("shard_map", PLAIN) == [
        "ref_logps: dense; not shard_map: no `reference.logps_head`",
        "fwd_bwd: dense; not shard_map: no `logps_head`",
    ]
    found = head_choices(plan("select-logps-head{head=shard_map},pipelined-boundary"), PLAIN)
    assert head_remarks(found) == (
        "the head of `ref_logps.first`, `ref_logps` stays dense: there is no `reference.logps_head`",
        "the head of `fwd_bwd.first`, `fwd_bwd`, `fwd_bwd_staged.first`, `fwd_bwd.first.early` stays dense: "
        "there is no `logps_head`",
    )


def test_one_part_that_has_it_is_not_the_other():
    assert told("shard_map", PLAIN | {"logps_head"}) == [
        "ref_logps: dense; not shard_map: no `reference.logps_head`",
        "fwd_bwd: shard_map",
    ]


@pytest.mark.parametrize("head", ["auto", "dense"])
def test_control_what_was_not_asked_for_is_not_missed(head: str):
    found = head_choices(plan(f"select-logps-head{{head={head}}}"), PLAIN)
    assert head_remarks(found) == ()


@pytest.mark.parametrize("pipeline", ["", "pipelined-boundary", "async-everything"])
def test_control_without_the_pass_there_is_no_choice(pipeline: str):
    assert head_choices(plan(pipeline), BOTH) == ()


def test_control_the_other_choices_are_the_same():
    able = PLAIN | {"trainer.apply_deferred_update", "trainer.stage_fwd_bwd", "trainer.fwd_bwd_staged"}
    given, marked = plan("pipelined-boundary"), plan("pipelined-boundary,select-logps-head{head=shard_map}")
    assert choices(given, able) == choices(marked, able)
