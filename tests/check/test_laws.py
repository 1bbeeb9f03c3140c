"""Laws and peeling in place: the exact ops they make, and when they are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from steptrace.check import LAWS, apply_law, peel_first
from steptrace.diag.schedule import LawError, PeelError, UnknownLawError, UnknownOpError
from steptrace.ir import BUILTIN, Op, Program, Use, ops_of, print_program, verify
from steptrace.lang.reference import resolve
from tests.check.boundary import reference, source

PLAIN = source()


def lines(program: Program, *ids: str) -> list[str]:
    """The text of some ops, up to their effects."""
    found = {}
    for text in print_program(program).splitlines():
        for op in ops_of(program.body):
            if text.strip().startswith((f"{op.id}:", f"{op.id}(")) or f"= {op.id}(" in text:
                found[op.id] = text.strip().split(" reads[")[0].split(" writes[")[0].split(" awaits[")[0]
    return [found[id] for id in ids]


def test_peeling_writes_the_first_round_before_the_loop() -> None:
    program = peel_first(PLAIN, "micro_batches")
    assert lines(program, "next_mb.first", "ref_logps.first", "fwd_bwd.first") == [
        "next_mb.first: %mb.first : micro_batch<advantages, rewards>, %last.first : flag = next_mb(%batch) lane=host "
        "at(m=0) from=next_mb",
        "ref_logps.first: %mb.2.first : micro_batch<advantages, ref_logps, rewards> = ref_logps(%mb.first) lane=host "
        "at(m=0) from=ref_logps",
        "fwd_bwd.first: fwd_bwd(%mb.2.first) lane=host at(m=0) from=fwd_bwd",
    ]
    assert "loop micro_batches: m in %batch from 1 {" in print_program(program)
    verify(program)


@pytest.mark.parametrize(
    ("op", "law", "parts"),
    [
        ("get_metrics", "start-fetch", ["start_metrics", "fetch_metrics"]),
        ("save_checkpoint", "snapshot-write", ["snapshot_checkpoint", "write_checkpoint"]),
        ("sync_weights", "copy-transfer-apply", ["copy_weights", "transfer_weights", "apply_weights"]),
        ("update", "deferred-update", ["apply_deferred_update"]),
    ],
)
def test_parts_stand_where_the_op_stood(op: str, law: str, parts: list[str]) -> None:
    program = apply_law(PLAIN, op, law)
    before = [node.id for node in PLAIN.body]
    at = before.index(op)
    assert [node.id for node in program.body] == [*before[:at], *parts, *before[at + 1 :]]
    verify(program)


def test_each_part_names_its_origin_and_keeps_the_condition() -> None:
    program = apply_law(PLAIN, "save_checkpoint", "snapshot-write")
    assert lines(program, "snapshot_checkpoint", "write_checkpoint") == [
        "snapshot_checkpoint() lane=host when(every 10) from=save_checkpoint.snapshot",
        "write_checkpoint() lane=host when(every 10) from=save_checkpoint.write",
    ]


def test_results_stay_with_the_part_that_makes_them() -> None:
    made = {
        op.id: [str(result) for result in op.results] for op in apply_law(PLAIN, "get_metrics", "start-fetch").ops()
    }
    assert (made["start_metrics"], made["fetch_metrics"]) == ([], ["%metrics : metrics"])
    made = {
        op.id: [str(result) for result in op.results]
        for op in apply_law(PLAIN, "sync_weights", "copy-transfer-apply").ops()
    }
    assert (made["copy_weights"], made["apply_weights"]) == (["%version : version"], [])


def test_a_stage_has_two_arms_for_one_call() -> None:
    program = apply_law(peel_first(PLAIN, "micro_batches"), "fwd_bwd.first", "stage")
    assert lines(program, "stage_fwd_bwd", "fwd_bwd_staged.first", "fwd_bwd.first") == [
        "%request : token, %staged : flag = stage_fwd_bwd(%mb.2.first) lane=host at(m=0) from=fwd_bwd.stage",
        "fwd_bwd_staged.first: fwd_bwd_staged(%request) lane=host at(m=0) when(%staged) from=fwd_bwd.staged",
        "fwd_bwd.first: fwd_bwd(%mb.2.first) lane=host at(m=0) when(not %staged) from=fwd_bwd.whole",
    ]
    verify(program)


def test_a_fused_update_is_done_by_the_last_call() -> None:
    program = apply_law(PLAIN, "update", "fused-update")
    assert "update" not in [op.id for op in program.ops()]
    assert lines(program, "fwd_bwd") == ['fwd_bwd(%mb.2) {closes="update"} lane=host']
    verify(program)


def test_laws_and_peeling_commute() -> None:
    other = apply_law(
        peel_first(apply_law(PLAIN, "update", "deferred-update"), "micro_batches"), "fwd_bwd.first", "stage"
    )
    other = apply_law(other, "get_metrics", "start-fetch")
    assert other.body == reference(PLAIN).body
    assert {r.name for r in other.resources} == {r.name for r in reference(PLAIN).resources}


def test_a_law_declares_the_resources_of_its_parts() -> None:
    names = [resource.name for resource in apply_law(PLAIN, "sync_weights", "copy-transfer-apply").resources]
    assert [name for name in names if name not in [r.name for r in PLAIN.resources]] == [
        "trainer.copies.sync",
        "rollout.arrived",
        "sync.round",
    ]


def seen(program: Program, *reads: str) -> Program:
    """The program with a callback before its update."""
    at = [node.id for node in program.body].index("update")
    op = Op("look", "on_step_end", attrs=(("reads", reads), ("writes", ())))
    return replace(program, body=(*program.body[:at], op, *program.body[at:]))


def test_an_update_is_not_fused_over_what_sees_the_gradients() -> None:
    with pytest.raises(LawError) as raised:
        apply_law(seen(PLAIN, "grads"), "update", "fused-update")
    assert "`look` stands between" in raised.value.message
    apply_law(seen(PLAIN, "metrics"), "update", "fused-update")


@pytest.mark.parametrize("law", ["fused-update", "deferred-update"])
def test_an_update_inside_mini_batches_is_left_alone(law: str) -> None:
    with pytest.raises(LawError):
        apply_law(resolve("grpo_epochs"), "update", law)


@pytest.mark.parametrize("law", ["fused-update", "deferred-update"])
def test_a_step_is_closed_once(law: str) -> None:
    with pytest.raises((LawError, UnknownLawError)):
        apply_law(apply_law(PLAIN, "update", "deferred-update"), "apply_deferred_update", law)


def test_only_a_peeled_call_is_staged() -> None:
    with pytest.raises(LawError):
        apply_law(PLAIN, "fwd_bwd", "stage")


def test_a_part_is_not_split_again() -> None:
    program = apply_law(peel_first(PLAIN, "micro_batches"), "fwd_bwd.first", "stage")
    with pytest.raises(LawError):
        apply_law(program, "fwd_bwd.first", "stage")


def test_unknown_laws_and_ops() -> None:
    with pytest.raises(UnknownLawError) as raised:
        apply_law(PLAIN, "log", "start-fetch")
    assert raised.value.help == "no law splits a `log`"
    with pytest.raises(UnknownOpError) as missing:
        apply_law(PLAIN, "get_metric", "start-fetch")
    assert missing.value.help == "did you mean `get_metrics`?"


def test_what_cannot_be_peeled() -> None:
    with pytest.raises(PeelError):
        peel_first(peel_first(PLAIN, "micro_batches"), "micro_batches")
    with pytest.raises(PeelError):
        peel_first(resolve("grpo_epochs"), "repeat")
    with pytest.raises(PeelError):
        peel_first(PLAIN, "update")
    with pytest.raises(UnknownOpError):
        peel_first(PLAIN, "loop")


def test_a_loop_that_looks_back_is_not_peeled() -> None:
    def back(op: Op) -> Op:
        return replace(op, args=(Use("mb", micro=-1),)) if op.id == "ref_logps" else op

    loop = next(node for node in PLAIN.body if node.id == "micro_batches")
    program = replace(
        PLAIN,
        body=tuple(replace(n, body=tuple(map(back, n.body))) if n is loop else n for n in PLAIN.body),
    )
    with pytest.raises(PeelError):
        peel_first(program, "micro_batches")


def test_rows_and_laws_name_one_another() -> None:
    for law in LAWS.values():
        named = [row.name for row in BUILTIN.values() if law.name in row.laws]
        assert law.splits in named or law.name == "deferred-update"
