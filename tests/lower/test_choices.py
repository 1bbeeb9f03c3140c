"""The choice table: which way each op of a schedule is carried out, by what the trainer can do."""

from __future__ import annotations

import pytest

from steptrace.diag.binding import NotLowerableError
from steptrace.ir import BUILTIN
from steptrace.ir.schedule_ops import SCHEDULE_ROWS
from steptrace.lang.reference import resolve
from steptrace.lower import TARGETS, Plan, lower
from steptrace.lower.choices import WAYS, choices
from steptrace.lower.fallbacks import fitted
from steptrace.passes import run_pipeline

PLAIN = frozenset({"trainer.fwd_bwd", "trainer.update", "trainer.get_metrics", "trainer.weights"})
SAVES = frozenset({"trainer.save_checkpoint"})
STAGES = frozenset({"trainer.stage_fwd_bwd", "trainer.fwd_bwd_staged", "trainer.wait_for_device"})
DEFERS = frozenset({"trainer.apply_deferred_update", "stage_before_update"})
ALL = frozenset(need for ways in WAYS.values() for way in ways for need in way.needs)


def plan(pipeline: str) -> Plan:
    made = run_pipeline(resolve('grpo{staleness=1, saves="may_fail_late"}'), pipeline).schedule
    return lower(made.program, source=made.source)


def ways(pipeline: str, able: frozenset[str]) -> dict[str, str]:
    return {choice.op: choice.way for choice in choices(plan(pipeline), able) if choice.way != "call"}


def test_a_trainer_that_can_do_everything():
    assert ways("async-everything", ALL) == {
        "fwd_bwd.first": "deferred",
        "fwd_bwd": "deferred",
        "stage_fwd_bwd": "stage",
        "apply_deferred_update": "deferred",
        "start_metrics": "set-aside",
        "snapshot_checkpoint": "copy",
        "write_checkpoint": "write",
        "copy_weights": "copy",
        "transfer_weights": "sent",
        "apply_weights": "apply",
        "fwd_bwd_staged.first": "staged",
        "poll_packed.first": "look",
        "fwd_bwd.first.early": "deferred",
        "fetch_metrics": "fetch",
    }
    assert ways("fuse-update", ALL) == {"fwd_bwd": "fused"}


def test_weights_are_sent_where_the_target_has_processes_and_are_in_memory_where_it_has_none():
    assert ways("async-weight-sync", PLAIN | TARGETS["process"].capabilities)["transfer_weights"] == "sent"
    assert ways("async-weight-sync", PLAIN | TARGETS["inline"].capabilities)["transfer_weights"] == "in-memory"


def test_a_trainer_with_the_plain_verbs_only():
    assert ways("async-everything", PLAIN | SAVES) == {
        "fwd_bwd.first": "plain",
        "fwd_bwd": "plain",
        "stage_fwd_bwd": "never",
        "apply_deferred_update": "update",
        "start_metrics": "get",
        "snapshot_checkpoint": "save",
        "write_checkpoint": "rest",
        "copy_weights": "weights",
        "transfer_weights": "in-memory",
        "apply_weights": "apply",
        "fwd_bwd_staged.first": "never",
        "poll_packed.first": "look",
        "fwd_bwd.first.early": "plain",
        "fetch_metrics": "kept",
    }
    assert ways("fuse-update", PLAIN) == {"fwd_bwd": "plain"}


def test_verbs_without_the_word_are_not_enough_to_hold_an_update_back():
    """An older trainer has the verb, and does not say that it can stage in between."""
    able = PLAIN | STAGES | {"trainer.apply_deferred_update"}
    found = {choice.op: choice for choice in choices(plan("pipelined-boundary"), able)}
    assert found["apply_deferred_update"].way == "update"
    assert found["apply_deferred_update"].passed_over == (("deferred", "stage_before_update"),)


def test_a_trainer_that_stages_and_holds_nothing_back_stages_behind_the_update():
    """The order of the pipeline that is written for it, and a remark that says why."""
    found, words = fitted(plan("pipelined-boundary"), PLAIN | STAGES)
    order = [node.id for node in found.program.body]
    assert order[order.index("apply_deferred_update") + 1] == "stage_fwd_bwd"
    assert order.index("stage_fwd_bwd") < order.index("fwd_bwd_staged.first")
    assert words == ("`stage_fwd_bwd` stands behind the update: the trainer has no `trainer.apply_deferred_update`",)
    assert {choice.op: choice.way for choice in choices(found, PLAIN | STAGES)}["stage_fwd_bwd"] == "stage"


@pytest.mark.parametrize("pipeline", ["pipelined-boundary", "pipelined-boundary-staged-after"])
def test_a_trainer_that_cannot_wait_for_the_device_stages_nothing(pipeline):
    """A failed update shows up first where the device is waited for; without that its error would be another call's."""
    lacking = {choice.op: choice for choice in choices(plan(pipeline), ALL - {"trainer.wait_for_device"})}
    assert lacking["stage_fwd_bwd"].way == "never"
    assert ("stage", "trainer.wait_for_device") in lacking["stage_fwd_bwd"].passed_over
    assert lacking["fwd_bwd_staged.first"].way == "never"


@pytest.mark.parametrize("pipeline", ["pipelined-boundary", "pipelined-boundary-staged-after"])
def test_control_one_that_can_stages(pipeline):
    assert ways(pipeline, ALL)["stage_fwd_bwd"] == "stage"


@pytest.mark.parametrize("able", [ALL, PLAIN, PLAIN | STAGES | DEFERS], ids=["all", "plain", "both"])
def test_control_other_trainers_keep_the_order(able):
    given = plan("pipelined-boundary")
    assert fitted(given, able) == (given, ())


def test_control_where_the_stage_stands_behind_the_update_nothing_moves():
    given = plan("pipelined-boundary-staged-after")
    assert fitted(given, PLAIN | STAGES) == (given, ())


def test_the_table_as_text():
    lines = [str(choice) for choice in choices(plan("pipelined-boundary"), PLAIN)]
    assert "take: call" in lines
    assert "apply_deferred_update: update; not deferred: no `trainer.apply_deferred_update`" in lines
    assert (
        "stage_fwd_bwd: never; not stage: no `trainer.apply_deferred_update`; not behind: no `trainer.stage_fwd_bwd`"
    ) in lines


def test_no_way_fits():
    with pytest.raises(NotLowerableError, match=r"`apply_deferred_update` .* needs `trainer.update`") as info:
        choices(plan("pipelined-boundary"), PLAIN - {"trainer.update"})
    assert "step.update()" in info.value.loc.source()


def test_every_part_of_a_law_has_a_row():
    rows = {rule.partition(" ")[0] for rule in WAYS}
    assert {row.name for row in SCHEDULE_ROWS} <= rows
    assert rows <= set(BUILTIN)


@pytest.mark.parametrize("rule", [rule for rule, found in WAYS.items() if len(found) > 1])
def test_the_last_way_needs_no_more_than_a_plain_trainer_has(rule):
    assert {*WAYS[rule][-1].needs} <= PLAIN | SAVES


def test_ops_as_written_have_no_choice():
    assert {choice.way for choice in choices(lower(resolve("grpo")), frozenset())} == {"call"}
