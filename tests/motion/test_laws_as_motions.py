"""`peel`, `split`, `fuse`, `guard`: ops become parts, and parts become ops."""

import pytest
from motion_views import changed, edge_of, plain, refusal, step

from steptrace.motion import fuse, guard, hoist, move_to_lane, peel, rotate, sink, split

SPLITS = {
    "start-fetch": ("get_metrics", ["start_metrics", "fetch_metrics"]),
    "snapshot-write": (
        "save_checkpoint",
        ["snapshot_checkpoint when(every 10)", "write_checkpoint when(every 10)"],
    ),
    "copy-transfer-apply": ("sync_weights", ["copy_weights", "transfer_weights", "apply_weights"]),
    "settle": ("fwd_bwd", ["attempt_fwd_bwd", "settle"]),
}


def ids(texts: list[str]) -> tuple[str, ...]:
    return tuple(text.split()[0] for text in texts)


def test_peeling_writes_the_first_micro_batch_out():
    begun = plain()
    moved = peel(begun, "micro_batches")
    assert changed(begun, moved) == [
        "- loop micro_batches: m in %batch",
        "+ next_mb.first: next_mb at(m=0)",
        "+ ref_logps.first: ref_logps at(m=0)",
        "+ fwd_bwd.first: fwd_bwd at(m=0)",
        "+ loop micro_batches: m in %batch from 1",
    ]
    assert moved.forwarding == {
        "next_mb": ("next_mb.first", "next_mb"),
        "ref_logps": ("ref_logps.first", "ref_logps"),
        "fwd_bwd": ("fwd_bwd.first", "fwd_bwd"),
    }
    assert (moved.obligation.class_, moved.obligation.discharged) == ("order", "law")


def test_what_cannot_be_peeled():
    twice = peel(plain(), "micro_batches").schedule
    assert refusal(lambda: peel(twice, "micro_batches")).code == "ST211"
    ahead = rotate(plain(), ("next_mb", "ref_logps"), above="fwd_bwd").schedule
    assert "micro-batches ahead" in refusal(lambda: peel(ahead, "micro_batches")).message
    assert refusal(lambda: peel(plain("grpo_epochs"), "repeat")).code == "ST211"
    assert refusal(lambda: peel(plain(), "loop")).code == "ST215"


@pytest.mark.parametrize("law", SPLITS)
def test_splitting_and_joining_again(law: str):
    op, parts = SPLITS[law]
    begun = plain()
    moved = split(begun, op, law=law)
    shown = op if law != "snapshot-write" else f"{op} when(every 10)"
    assert changed(begun, moved) == [f"- {shown}", *(f"+ {part}" for part in parts)]
    assert moved.forwarding == {op: ids(parts)}
    joined = fuse(moved.schedule, ids(parts)[0], law=law)
    assert joined.schedule.program == begun.program
    assert joined.schedule.reference == begun.reference
    assert joined.forwarding == dict.fromkeys(ids(parts), (op,))


def test_joining_parts_that_stand_apart_is_refused_where_something_between_needs_one():
    begun = split(plain(), "sync_weights", law="copy-transfer-apply").schedule
    apart = sink(begun, ("transfer_weights", "apply_weights"), below="commit").schedule
    joined = fuse(apart, "copy_weights", law="copy-transfer-apply").schedule
    assert [line for line in step(joined) if "weights" in line] == ["sync_weights"]
    assert refusal(lambda: fuse(begun, "commit", law="copy-transfer-apply")).code == "ST289"


def test_parts_on_other_lanes_are_not_joined():
    begun = split(plain(), "get_metrics", law="start-fetch").schedule
    moved = move_to_lane(begun, "fetch_metrics", lane="io").schedule
    error = refusal(lambda: fuse(moved, "fetch_metrics", law="start-fetch"))
    assert error.message == "`fetch_metrics` and `start_metrics` differ in lane: io and host"


def test_an_update_is_held_back():
    begun = plain()
    moved = split(begun, "update", law="deferred-update")
    assert changed(begun, moved) == [
        "- fwd_bwd",
        "- update",
        "+ fwd_bwd closes=defer",
        "+ apply_deferred_update",
    ]
    assert moved.obligation.class_ == "order"
    error = refusal(lambda: hoist(moved.schedule, "get_metrics", above="apply_deferred_update"))
    assert (error.code, edge_of(error)) == ("ST204", "apply_deferred_update -> get_metrics (0)")


def test_an_update_is_joined_to_the_last_call():
    begun = plain()
    moved = fuse(begun, "update", law="fused-update")
    assert changed(begun, moved) == ["- fwd_bwd", "- update", "+ fwd_bwd closes=update"]
    assert moved.obligation.class_ == "recompiled"
    assert moved.forwarding == {"update": ("fwd_bwd",)}
    assert refusal(lambda: fuse(moved.schedule, "fwd_bwd", law="fused-update")).code == "ST212"


def test_an_update_in_a_loop_over_epochs_stays():
    error = refusal(lambda: fuse(plain("grpo_epochs"), "update", law="fused-update"))
    assert error.code == "ST210"


def test_a_call_becomes_its_shipping_and_two_arms():
    begun = peel(plain(), "micro_batches").schedule
    moved = split(begun, "fwd_bwd.first", law="stage")
    assert changed(begun, moved) == [
        "- fwd_bwd.first: fwd_bwd at(m=0)",
        "+ stage_fwd_bwd at(m=0)",
        "+ fwd_bwd_staged.first: fwd_bwd_staged at(m=0) when(%staged)",
        "+ fwd_bwd.first: fwd_bwd at(m=0) when(not %staged)",
    ]
    assert refusal(lambda: split(plain(), "fwd_bwd", law="stage")).code == "ST210"
    assert refusal(lambda: split(moved.schedule, "fwd_bwd.first", law="stage")).code == "ST210"


def test_a_call_becomes_an_early_and_a_late_arm():
    begun = peel(plain(), "micro_batches").schedule
    moved = guard(begun, "fwd_bwd.first")
    assert changed(begun, moved) == [
        "- fwd_bwd.first: fwd_bwd at(m=0)",
        "+ poll_packed.first: poll_packed at(m=0)",
        "+ fwd_bwd.first.early: fwd_bwd at(m=0) when(%packed)",
        "+ fwd_bwd.first: fwd_bwd at(m=0) when(not %packed)",
    ]


@pytest.mark.parametrize("op", ["log", "fwd_bwd"])
def test_other_ops_have_no_early_arm(op: str):
    assert refusal(lambda: guard(plain(), op)).code == "ST282"


def test_laws_that_are_none():
    assert refusal(lambda: split(plain(), "log", law="start-fetch")).code == "ST212"
    assert refusal(lambda: split(plain(), "log", law="nonsense")).code == "ST212"
    assert refusal(lambda: split(plain(), "logg", law="start-fetch")).code == "ST215"
    assert refusal(lambda: fuse(plain(), "get_metrics", law="start-fetch")).code == "ST289"
