"""The edges of GRPO, written down by hand: each is a rule of the train step."""

from __future__ import annotations

from steptrace.check import edges_of
from steptrace.ir import Flag, Given, Not, Op, Operand, OpKind, Program, Result, Type, Use
from steptrace.lang.reference import resolve
from tests.check.boundary import reference, source

GRPO = """
on_step_end -> on_step_begin (1) channel callbacks
dispatch -> dispatch (1) raw prompts.cursor
sync_weights -> dispatch (2) raw rollout.weights[k-2]
dispatch -> take (0) fifo queue.groups
take -> take (1) fifo queue.groups
take -> reward (0) value %groups
take -> advantages (0) raw host[k]
reward -> advantages (0) value %scored
reward -> pack (0) war host[k]
advantages -> pack (0) value %advantaged
pack -> pack (1) raw packer
pack -> next_mb (0) value %batch
next_mb -> ref_logps (0, 0) value %mb
ref_logps -> fwd_bwd (0, 0) value %mb.2
fwd_bwd -> fwd_bwd (0, 1) raw grads
update -> fwd_bwd (1) raw params
get_metrics -> fwd_bwd (1) waw trainer.metrics
save_checkpoint -> fwd_bwd (1) war grads
sync_weights -> fwd_bwd (1) channel trainer.calls
take -> update (0) exists %exists
fwd_bwd -> update (0) raw grads
get_metrics -> update (1) war params
save_checkpoint -> update (1) war grads
sync_weights -> update (1) war params
update -> get_metrics (0) raw params
update -> save_checkpoint (0) raw params
get_metrics -> save_checkpoint (0) channel trainer.calls
save_checkpoint -> save_checkpoint (1) channel checkpoints
sync_weights -> save_checkpoint (1) raw rollout.weights
update -> sync_weights (0) raw params
save_checkpoint -> sync_weights (0) war rollout.weights[k]
take -> commit (0) raw queue.taken[k]
sync_weights -> commit (0) raw policy.version[k]
log -> commit (1) war queue.training
pack -> log (0) raw host[k]
get_metrics -> log (0) value %metrics
sync_weights -> log (0) raw policy.version[k]
commit -> log (0) raw queue.training
log -> log (1) channel log
on_step_begin -> on_step_end (0) channel callbacks
get_metrics -> on_step_end (0) raw metrics[k]
next_mb -> free (0) war host[k]
log -> free (0) war host[k]
"""


def shown(name: str) -> set[str]:
    return {str(edge) for edge in edges_of(resolve(name))}


def test_grpo_with_staleness_1() -> None:
    assert shown("grpo{staleness=1}") == set(GRPO.strip().splitlines())


def test_staleness_is_an_index_and_nothing_else() -> None:
    fresh = {line.replace("(2) raw rollout.weights[k-2]", "(1) raw rollout.weights[k-1]") for line in GRPO.splitlines()}
    assert shown("grpo") == fresh - {""}


def test_a_host_read_waits_for_the_work_a_call_for_the_call() -> None:
    events = {str(edge).split(" (")[0]: edge.from_event for edge in edges_of(source())}
    assert events["update -> sync_weights"] == "done", "the parameters are read on the host side of the device"
    assert events["ref_logps -> fwd_bwd"] == "issue", "the device orders its inputs by itself"
    assert events["sync_weights -> dispatch"] == "done", "the sync returns when the weights are there"


def test_a_stream_takes_group_by_group() -> None:
    edges = shown("grpo_stream")
    assert {
        "dispatch -> stream_mb (0) fifo queue.groups",
        "stream_mb -> stream_mb (0, 1) fifo queue.groups",
        "stream_mb -> stream_mb (1) fifo queue.groups",
        "stream_mb -> update (0) exists %exists",
    } <= edges


def test_a_loop_over_epochs_is_one_piece() -> None:
    edges = shown("grpo_epochs")
    assert "advantages -> repeat (0) value %advantaged" in edges
    assert "repeat -> get_metrics (0) raw params" in edges
    assert not any("fwd_bwd" in edge for edge in edges)


def test_the_arms_of_a_stage_are_not_ordered_and_only_the_whole_one_waits_for_the_data() -> None:
    edges = edges_of(reference(source()))
    arms = {"fwd_bwd.first", "fwd_bwd_staged.first"}
    between = [edge for edge in edges if {edge.before, edge.after} == arms]
    assert {edge.distance for edge in between} <= {1}
    data = {"take", "reward", "advantages", "pack", "next_mb.first", "ref_logps.first"}
    assert {edge.before for edge in edges if edge.after == "fwd_bwd_staged.first"}.isdisjoint(data)
    assert {edge.before for edge in edges if edge.after == "stage_fwd_bwd"}.isdisjoint(data)
    assert "ref_logps.first" in {edge.before for edge in edges if edge.after == "fwd_bwd.first"}


def test_a_capacity_is_an_edge_from_the_release() -> None:
    edges = [edge for edge in edges_of(reference(source(), capacity=2)) if edge.kind.value == "capacity"]
    assert [str(edge) for edge in edges] == ["free -> take (2) capacity host"]


def test_every_edge_has_a_reason_that_names_both_ends() -> None:
    for edge in edges_of(reference(source())):
        assert f"`{edge.before}`" in edge.reason
        assert f"`{edge.after}`" in edge.reason


def test_what_runs_only_when_a_value_was_seen_does_not_wait_for_it() -> None:
    value = (Operand("value", None),)
    rows = (
        OpKind("make", results=(Given("v", "value"),), user=True),
        OpKind("look", operands=value, results=(Given("seen", "flag"),), polls=True, user=True),
        OpKind("use", operands=value, user=True),
    )
    body = (
        Op("make", "make", results=(Result("v", Type("value")),)),
        Op("look", "look", args=(Use("v"),), results=(Result("seen", Type("flag")),)),
        Op("use", "use", args=(Use("v"),), when=Flag("seen")),
        Op("late", "use", args=(Use("v"),), when=Not(Flag("seen"))),
    )
    program = Program("small", kinds=rows, body=body)
    assert {str(edge) for edge in edges_of(program)} == {
        "look -> use (0) value %seen",
        "look -> late (0) value %seen",
        "make -> late (0) value %v",
    }
