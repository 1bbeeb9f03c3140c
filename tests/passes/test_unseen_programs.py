"""Passes on steps that they were not written for: they do what is legal, or decline with the edge in the way."""

from __future__ import annotations

from functools import lru_cache

import pytest
import unseen_programs

from steptrace.check.validation import Budget, validate
from steptrace.ir import nest_view, verify
from steptrace.lang.definition import ProgramDef
from steptrace.lang.reference import resolve
from steptrace.passes import PIPELINES, PipelineResult, Remark, run_pipeline

PROGRAMS = {name: thing for name, thing in vars(unseen_programs).items() if isinstance(thing, ProgramDef)}


@lru_cache
def derived(name: str, pipeline: str) -> PipelineResult:
    return run_pipeline(PROGRAMS[name].trace() if name in PROGRAMS else resolve(name), pipeline)


def step(name: str, pipeline: str) -> list[str]:
    """The lines of the step, without indentation."""
    shown = nest_view(derived(name, pipeline).schedule.program).splitlines()
    return [line.strip() for line in shown[shown.index("step k") + 1 :]]


def missed(name: str, pipeline: str) -> Remark:
    """The one remark of a pass that declined."""
    result = derived(name, pipeline)
    (remark,) = [remark for remark in result.remarks if remark.kind == "missed"]
    return remark


def edge_of(remark: Remark) -> str:
    assert remark.edge is not None
    return f"{remark.edge.before} -> {remark.edge.after} ({remark.edge.distance})"


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("pipeline", [*PIPELINES, "fuse-update,pipelined-boundary-staged-after"])
def test_whatever_is_derived_equals_its_source(name: str, pipeline: str):
    schedule = derived(name, pipeline).schedule
    verify(schedule.program)
    report = validate(schedule.program, schedule.source, budget=Budget(runs=60))
    assert report.ok, str(report)


def test_values_of_a_critic_wait_for_its_update():
    shown = step("ppo_with_critic", "take-ahead")
    assert shown[:3] == [f"{op} lane=packer shift=+1" for op in ("dispatch", "take", "reward")]
    assert shown[4:7] == ["values", "advantages", "pack"]
    remark = missed("ppo_with_critic", "take-ahead,stage-before-update")
    assert edge_of(remark) == "update_critic -> values (1)"
    assert remark.loc.source() == "groups = values(step.reward(step.take()))"


def test_what_a_users_op_remembers_is_not_written_before_the_steps_before_are_through():
    shown = step("remembering", "take-ahead")
    assert shown[:2] == ["dispatch lane=packer shift=+1", "take lane=packer shift=+1"]
    assert "unseen_only" in shown
    assert "reward" in shown
    assert "weighted" in step("remembering_micro_batches", "pipeline-micro-batches")
    remark = missed("archiving", "take-ahead")
    assert remark.message == "`archive` would follow what is taken ahead, and what it writes stays when a step fails"
    assert remark.loc.source() == "archive(groups)"


@pytest.mark.parametrize(("name", "op"), [("penalised", "penalty"), ("remembering", "unseen_only")])
def test_take_ahead_names_the_users_op_at_which_it_stops(name: str, op: str):
    remarks = derived(name, "take-ahead").remarks
    assert {remark.kind for remark in remarks} == {"applied", "missed"}
    remark = missed(name, "take-ahead")
    assert remark.message.startswith(f"stopped at `{op}`: it writes `")
    assert remark.message.endswith("`, which stays when a step fails")
    assert op in remark.loc.source()
    assert f"then `{op}` can move" in remark.help or f"`{op}` can move if" in remark.help


@pytest.mark.parametrize("later", ["stage-before-update", "stage-after-update", "send-ahead"])
def test_what_needs_more_than_take_ahead_could_take_says_why(later: str):
    found = [remark for remark in derived("penalised", f"take-ahead,{later}").remarks if remark.pass_name == later]
    assert [remark.message for remark in found] == [
        "the first micro-batch cannot be shipped ahead of `penalty`: it writes `notes.mean`,"
        " which stays when a step fails"
    ]
    assert "put `take-ahead`" not in found[0].help


def test_control_take_ahead_stops_nowhere_at_an_op_that_writes_nothing():
    assert {remark.kind for remark in derived("own_ops", "take-ahead").remarks} == {"applied"}
    assert missed("penalised", "stage-before-update").help == "put `take-ahead` before this pass"


def test_metrics_are_fetched_before_what_would_stay_if_the_update_failed():
    remark = missed("reporting", "defer-metrics")
    assert remark.message == "`report` follows the metrics, and what it writes stays when the update fails"
    assert (remark.code, remark.loc.source()) == ("ST283", "report()")
    shown = step("reporting_late", "defer-metrics")
    order = [shown.index(op) for op in ("start_metrics", "sync_weights", "fetch_metrics", "report", "commit")]
    assert order == sorted(order)


def test_control_without_it_they_are_fetched_after_the_commit():
    shown = step("own_ops", "defer-metrics")
    assert shown.index("fetch_metrics") > shown.index("commit")


def test_a_critic_is_not_trained_behind_a_call_that_may_still_be_run_again():
    remark = missed("critic_behind_each_call", "replay")
    assert remark.code == "ST254"
    assert remark.message == "train_critic@(0,1) may have run when settle@(0,0) fails"
    assert remark.loc.source() == "train_critic(mb)"


def test_control_where_no_log_probs_wait_for_the_calls_before_it_is_trained_all_the_same():
    assert all(remark.kind == "applied" for remark in derived("ppo_with_critic", "replay").remarks)


def test_a_carry_that_nobody_reads_goes_with_the_op_that_sets_it():
    result = derived("forgetful", "dce")
    assert [remark.kind for remark in result.remarks] == ["applied"]
    assert result.schedule.program.carries == ()
    assert "adapted" not in step("forgetful", "dce")


def test_a_users_op_between_taking_and_packing_goes_ahead_with_them():
    shown = step("own_ops", "pipelined-boundary")
    ahead = [line.split()[0].rstrip(":") for line in shown if "lane=packer" in line and "shift=+1" in line]
    assert ahead == [
        "dispatch",
        "take",
        "reward",
        "length_penalty",
        "advantages",
        "pack",
        "next_mb.first",
        "ref_logps.first",
    ]
    assert "spend" in shown, "what only looks at the groups stays in its step"
    assert all(remark.kind == "applied" for remark in derived("own_ops", "pipelined-boundary").remarks)


def test_a_callback_without_declared_effects_lets_nothing_past():
    remark = missed("undeclared_callback", "take-ahead")
    assert edge_of(remark) == "on_step_end -> take (1)"
    assert remark.help == 'declare what `on_step_end` reads and writes: step.on_step_end(reads=["metrics"])'
    assert edge_of(missed("undeclared_callback", "defer-metrics")) == "on_step_end -> fwd_bwd (1)"


def test_an_op_without_declared_effects_lets_nothing_past():
    remark = missed("undeclared_op", "take-ahead")
    assert edge_of(remark) == "audit -> take (1)"
    assert remark.help == "declare what `audit` reads and writes: @steptrace.op(reads=[...])"


def test_a_coefficient_that_adapts_to_the_metrics_needs_them_in_time():
    remark = missed("adaptive_kl", "defer-metrics")
    assert edge_of(remark) == "adapted -> scaled (1)"
    assert remark.message == (
        "the metrics cannot be fetched late: `scaled` of step k+1 uses `%kl_coef@k-1`, which `adapted` of step k makes"
    )


def test_control_the_same_coefficient_stands_in_no_other_pass_way():
    assert all(remark.kind == "applied" for remark in derived("adaptive_kl", "take-ahead").remarks)


def test_log_probs_under_the_actor_stay_in_their_step():
    shown = step("old_policy", "take-ahead,pipeline-micro-batches")
    assert "old_logps.first: old_logps at(m=0)" in shown
    assert "old_logps" in shown
    assert "ref_logps shift=+1" in shown
    remark = missed("old_policy", "take-ahead,stage-before-update")
    assert edge_of(remark) == "update -> old_logps.first (1)"


def test_nothing_is_taken_ahead_of_weights_that_this_step_publishes():
    remark = missed("grpo", "take-ahead")
    assert edge_of(remark) == "sync_weights -> dispatch (1)"
    assert "`grpo{staleness=1}`" in remark.help
    assert remark.loc.source() == "step.dispatch(prompts=prompts, samples=samples)"
    assert "step.sync_weights()" in [note.loc.source() for note in remark.notes]


@pytest.mark.parametrize(("depth", "staleness"), [(1, 1), (2, 2), (3, 3), (1, 3)])
def test_as_far_ahead_as_the_weights_are_old(depth: int, staleness: int):
    shown = step(f"grpo{{staleness={staleness}}}", f"take-ahead{{depth={depth}}}")
    assert shown[0] == f"dispatch lane=packer shift=+{depth}"


@pytest.mark.parametrize(("depth", "staleness"), [(2, 1), (3, 2)])
def test_control_no_further(depth: int, staleness: int):
    remark = missed(f"grpo{{staleness={staleness}}}", f"take-ahead{{depth={depth}}}")
    assert f"`grpo{{staleness={depth}}}`" in remark.help


def test_a_stream_goes_ahead_as_a_whole():
    shown = step("grpo_stream{staleness=1}", "take-ahead")
    assert shown[2:9] == [
        "loop micro_batches: m from 1",
        "stream_mb lane=packer",
        "ref_logps lane=packer",
        "fwd_bwd",
        "dispatch lane=packer shift=+1",
        "stream_mb.first: stream_mb lane=packer at(m=0) shift=+1",
        "ref_logps.first: ref_logps lane=packer at(m=0) shift=+1",
    ]


def test_a_stream_that_is_not_taken_ahead_is_packed_beside_the_training():
    shown = step("grpo_stream", "pipeline-micro-batches")
    assert "stream_mb lane=packer" in shown
    assert "fwd_bwd" in shown


def test_epochs_take_ahead_and_have_no_first_micro_batch():
    shown = step("grpo_epochs{staleness=1}", "take-ahead")
    assert shown[:3] == [f"{op} lane=packer shift=+1" for op in ("dispatch", "take", "reward")]
    remark = missed("grpo_epochs{staleness=1}", "take-ahead,stage-before-update")
    assert remark.message == (
        "the step trains inside loop `repeat`, which is moved as a whole, so it has no first micro-batch that could be "
        "moved"
    )


@pytest.mark.parametrize(
    ("pipeline", "message"),
    [
        (
            "stage-before-update",
            "the first micro-batch of `micro_batches` runs inside",
        ),
        ("send-ahead", "the first micro-batch of `micro_batches` runs inside the loop, so there is none to ship ahead"),
        ("take-ahead,take-ahead", "`take` runs ahead already"),
        ("take-ahead,one-step-off", "`dispatch` runs ahead already"),
        (
            "defer-metrics,defer-metrics",
            "the pass needs one `get_metrics` directly in the step, and there is none, or it is split",
        ),
        (
            "defer-update,fuse-update",
            "the pass needs one `update` directly in the step, and there is none, or it is split already",
        ),
        ("pipeline-micro-batches,pipeline-micro-batches", "`next_mb` runs ahead already"),
        ("async-checkpoint", "`save_checkpoint` must be on disk before what follows it"),
        ("take-ahead,stage-before-update,stage-after-update", "`fwd_bwd_staged.first` is shipped ahead already"),
        ("pipelined-boundary,send-ahead", "`fwd_bwd_staged.first` is sent ahead already"),
        ("pipelined-boundary-unstaged,fuse-update", "`fwd_bwd.first.early` is sent ahead, and would do the update"),
        ("dce", "every op of the step is seen by another one, or from outside"),
        (
            "fuse-update,take-ahead,stage-after-update,send-ahead",
            "`fwd_bwd_staged.first` also does the update in a step of one micro-batch",
        ),
    ],
)
def test_what_a_pass_declines_on_grpo(pipeline: str, message: str):
    remark = missed("grpo{staleness=1}", pipeline)
    assert remark.code == "ST283"
    assert remark.message.startswith(message)


def test_one_step_off_is_one_update_behind():
    result = derived("grpo", "one-step-off")
    assert result.schedule.source == resolve("grpo{staleness=1}")
    assert step("grpo", "one-step-off")[1] == "dispatch shift=+1"
    assert [remark.kind for remark in result.remarks] == ["applied", "applied"]


def test_everything_at_once():
    shown = step("grpo{saves=may_fail_late}", "async-everything")
    lanes = {line.partition("lane=")[2].split()[0] for line in shown if "lane=" in line}
    assert lanes == {"packer", "rollout", "io"}
    assert all(remark.kind == "applied" for remark in derived("grpo{saves=may_fail_late}", "async-everything").remarks)


def test_an_op_that_nobody_would_miss_is_left_out():
    result = derived("leftover_op", "pipelined-boundary,dce")
    assert "note_lengths" in step("leftover_op", "pipelined-boundary")
    assert "note_lengths" not in step("leftover_op", "pipelined-boundary,dce")
    assert "note_lengths" not in nest_view(result.schedule.source)
    assert all(remark.kind == "applied" for remark in result.remarks)
