"""`stream`: a step in bulk becomes the step that packs groups as they arrive."""

from __future__ import annotations

from dataclasses import replace

import pytest
from motion_views import changed, plain, refusal

from steptrace.check.stream_law import ASSUMES, assumptions_of, chain_of, obstacle_to_stream
from steptrace.ir import Every, Loop, Node, Origin, Program, parse_program, print_program
from steptrace.lang.reference import resolve
from steptrace.motion import Schedule, move_to_lane, peel, rotate, split, stream
from steptrace.passes import run_pipeline

BULK = ("take", "reward", "advantages", "pack")


def bare(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """Nodes without lines and origins, which tell how a program came about and not what it does."""
    return tuple(
        replace(node, loc=None, body=bare(node.body))
        if isinstance(node, Loop)
        else replace(node, loc=None, origin=Origin(node.id))
        for node in nodes
    )


def shape(program: Program) -> tuple[object, ...]:
    return (bare(program.body), bare(program.prologue), program.resources, program.contract, program.params)


def conditional(program: Program, op_id: str) -> Program:
    return replace(program, body=tuple(replace(n, when=Every(2)) if n.id == op_id else n for n in program.body))


def test_the_loop_takes_scores_and_packs() -> None:
    begun = plain()
    moved = stream(begun, "micro_batches")
    assert changed(begun, moved) == [
        "- take",
        "- reward",
        "- advantages",
        "- pack",
        "- loop micro_batches: m in %batch",
        "- next_mb",
        "+ loop micro_batches: m",
        "+ stream_mb",
    ]
    assert moved.forwarding == dict.fromkeys((*BULK, "next_mb"), ("stream_mb",))
    assert (moved.obligation.class_, moved.obligation.discharged) == ("order", "law")


@pytest.mark.parametrize("staleness", [0, 1])
def test_it_is_the_step_that_one_would_write_by_hand(staleness: int) -> None:
    streamed = stream(plain(f"grpo{{staleness={staleness}}}"), "micro_batches").schedule.program
    by_hand = resolve(f"grpo_stream{{staleness={staleness}}}")
    assert shape(streamed) == shape(by_hand)
    assert shape(resolve("grpo")) != shape(by_hand)


def test_what_is_taken_for_granted_is_said() -> None:
    moved = stream(plain(), "micro_batches")
    assert moved.obligation.assumes == ASSUMES
    assert "packing is prefix-stable" in ASSUMES
    assert assumptions_of(moved.schedule.program) == (ASSUMES,)
    assert assumptions_of(plain().program) == ()
    (remark,) = run_pipeline(resolve("grpo"), "stream-micro-batches").remarks
    assert remark.message.endswith(f"; assumed: {ASSUMES}")


def test_the_trail_makes_it_again() -> None:
    begun = plain()
    schedule = peel(stream(begun, "micro_batches").schedule, "micro_batches").schedule
    names: dict[str, object] = {}
    exec(schedule.as_python(), names)
    assert names["derive"](begun.source).program == schedule.program  # type: ignore[operator]


def test_the_text_says_where_it_came_from() -> None:
    program = stream(plain(), "micro_batches").schedule.program
    assert '= stream_mb() {estimator="grpo"} lane=host from=next_mb.stream reads[' in print_program(program)
    again = Schedule.of(parse_program(print_program(program)), resolve("grpo{staleness=1}"))
    assert print_program(again.reference) == print_program(program)


def test_it_can_be_peeled_and_staged_like_any_other() -> None:
    begun = stream(plain(), "micro_batches").schedule
    peeled = peel(begun, "micro_batches")
    assert "+ stream_mb.first: stream_mb at(m=0)" in changed(begun, peeled)
    staged = split(peeled.schedule, "fwd_bwd.first", law="stage")
    assert "+ stage_fwd_bwd at(m=0)" in changed(peeled.schedule, staged)


def test_one_estimator_for_all_groups_needs_them_all() -> None:
    error = refusal(lambda: stream(plain("reinforce_pp"), "micro_batches"))
    assert error.code == "ST210"
    assert "`advantages` normalises over the whole step (estimator `reinforce_pp`)" in error.message


def test_a_step_that_a_schedule_has_moved_is_streamed_no_more() -> None:
    peeled = peel(plain(), "micro_batches").schedule
    assert "stands outside it already" in refusal(lambda: stream(peeled, "micro_batches")).message
    ahead = rotate(plain(), ("next_mb", "ref_logps"), above="fwd_bwd").schedule
    assert "`next_mb` runs ahead already" in refusal(lambda: stream(ahead, "micro_batches")).message
    apart = move_to_lane(plain(), ("take", "reward"), lane="packer").schedule
    assert "`take` runs ahead already, on another lane" in refusal(lambda: stream(apart, "micro_batches")).message
    once = stream(plain(), "micro_batches").schedule
    assert refusal(lambda: stream(once, "micro_batches")).code == "ST212"
    error = refusal(lambda: stream(Schedule.of(conditional(resolve("grpo"), "pack")), "micro_batches"))
    assert "`pack` runs ahead already, on another lane than `next_mb`, or under a condition" in error.message


def test_what_is_no_loop_over_micro_batches() -> None:
    assert refusal(lambda: stream(plain(), "update")).code == "ST280"
    assert refusal(lambda: stream(plain(), "loops")).code == "ST215"
    assert refusal(lambda: stream(plain("grpo_epochs"), "repeat")).code == "ST280"
    assert "it stands in no loop" in refusal(lambda: split(plain("grpo_epochs"), "next_mb", law="stream")).message


def test_the_chain_ends_at_what_is_none_of_it() -> None:
    program = resolve("grpo")
    loop = next(node for node in program.body if isinstance(node, Loop))
    assert tuple(op.id for op in chain_of(program, loop)) == BULK
    assert obstacle_to_stream(program, loop) is None
    other = replace(program, body=tuple(replace(n, kind="next_part") if n.id == "reward" else n for n in program.body))
    assert [op.id for op in chain_of(other, loop)] == ["advantages", "pack"]
    obstacle = obstacle_to_stream(other, loop)
    assert obstacle is not None
    assert (obstacle.before, obstacle.after) == ("take", "reward")


def test_a_batch_from_nowhere_is_no_step_to_stream() -> None:
    program = resolve("grpo")
    gone = replace(program, body=tuple(n for n in program.body if n.id != "pack"))
    loop = next(node for node in gone.body if isinstance(node, Loop))
    obstacle = obstacle_to_stream(gone, loop)
    assert obstacle is not None
    assert obstacle.why == "`micro_batches` uses what is not made directly in its step"
