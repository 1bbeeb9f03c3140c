"""The meaning of a schedule: which instances each lane runs, in which order."""

from __future__ import annotations

from dataclasses import replace

import pytest
from schedule_cases import body, edited, pipelined, source

from steptrace.check.validation import run_order
from steptrace.ir import Every, Flag, Last, Loop, Not, Op, Origin, Program


def small(*nodes: Op | Loop) -> Program:
    return Program("small", body=nodes)


def tokens(program: Program, counts: tuple[int, ...], lane: str = "host", **facts: object) -> str:
    """The order of a lane in short: `take@1`, `mb@1.0`."""
    ran = run_order(program, counts, **facts).get(lane, [])  # type: ignore[arg-type]
    return " ".join(f"{op}@{'.'.join(map(str, (step, *path)))}" for op, step, path in ran)


def op(op_id: str, **fields: object) -> Op:
    return Op(op_id, "free", **fields)  # type: ignore[arg-type]


def loop(*nodes: Op, start: int = 0) -> Loop:
    return Loop("micro_batches", "micro_batches", "m", None, None, nodes, start=start)


def test_without_shifts_steps_run_one_after_the_other() -> None:
    assert tokens(small(op("a"), op("b")), (0, 0)) == "a@0 b@0 a@1 b@1"


def test_an_op_that_runs_ahead_runs_at_its_place_for_a_later_step() -> None:
    assert tokens(small(op("a"), op("b", shift=1), op("c")), (0, 0, 0)) == "b@0 a@0 b@1 c@0 a@1 b@2 c@1 a@2 c@2"


def test_lanes_keep_their_own_order() -> None:
    program = small(op("a"), op("b", lane="packer", shift=2), op("c", lane="packer"))
    assert tokens(program, (0, 0), "packer") == "b@0 b@1 c@0 c@1"
    assert tokens(program, (0, 0)) == "a@0 a@1"


def test_inside_a_loop_a_shift_counts_micro_batches_of_the_step() -> None:
    program = small(loop(op("a", shift=1), op("b")))
    assert tokens(program, (2, 0, 1)) == "a@0.0 a@0.1 b@0.0 b@0.1 a@2.0 b@2.0"


def test_a_peeled_op_runs_where_its_micro_batch_exists() -> None:
    program = small(op("a.first", micro=0, shift=1, origin=Origin("a")), loop(op("a"), start=1), op("b"))
    assert tokens(program, (2, 0, 1)) == "a.first@0.0 a@0.1 b@0 a.first@2.0 b@1 b@2"


def test_what_stands_around_the_steps_runs_as_step_minus_one_and_n() -> None:
    program = replace(small(op("a", shift=1)), prologue=(op("first"),), epilogue=(op("last"),))
    assert tokens(program, (0, 0)) == "first@-1 a@0 a@1 last@2"


def test_conditions_on_step_and_micro_batch() -> None:
    program = small(loop(op("a"), op("b", when=Last())), op("c", when=Every(2)))
    assert tokens(program, (2, 1)) == "a@0.0 a@0.1 b@0.1 a@1.0 b@1.0 c@1"


def test_epochs_and_mini_batches_have_counters_of_their_own() -> None:
    inner = loop(op("a"))
    program = small(Loop("repeat", "repeat", "e", None, 2, (inner, op("b"))))
    assert tokens(program, (2,)) == "a@0.0.0 a@0.0.1 b@0.0 a@0.1.0 a@0.1.1 b@0.1"


@pytest.mark.parametrize(
    ("staged", "sent"),
    [
        ((), "fwd_bwd.first@1.0"),
        ((("fwd_bwd", "stage", 1, 1, (0,)),), "fwd_bwd_staged.first@1.0"),
    ],
)
def test_exactly_one_arm_runs(staged: tuple[tuple[str, str, int, int, tuple[int, ...]], ...], sent: str) -> None:
    ran = tokens(pipelined(), (1, 1), flags=frozenset(staged)).split()
    assert [token for token in ran if token.startswith("fwd_bwd")][1:] == [sent]


def test_the_pipelined_step_of_grpo() -> None:
    """The boundary between steps 0 and 1, each of two micro-batches, step 1 staged."""
    flags = frozenset({("fwd_bwd", "stage", 1, 1, (0,))})
    ran = run_order(pipelined(), (2, 2), flags)
    assert [op for op, step, _ in ran["packer"] if step == 1] == [
        "dispatch", "take", "reward", "advantages", "pack", "next_mb.first", "ref_logps.first",
    ]  # fmt: skip
    host = tokens(pipelined(), (2, 2), flags=flags).split()
    assert host[host.index("fwd_bwd@0.1") : host.index("on_step_begin@1") + 2] == [
        "fwd_bwd@0.1", "stage_fwd_bwd.first@1.0", "apply_deferred_update@0", "start_metrics@0", "sync_weights@0",
        "commit@0", "fwd_bwd_staged.first@1.0", "fetch_metrics@0", "log@0", "on_step_end@0", "free@0",
        "on_step_begin@1", "next_mb@1.1",
    ]  # fmt: skip


def test_control_another_shift_is_another_order() -> None:
    program = small(op("a"), op("b", shift=1))
    assert tokens(program, (0, 0)) != tokens(small(op("a"), op("b")), (0, 0))
    assert isinstance(body(source())["update"], Op)
    late = edited(source(), "update", lambda op: replace(op, when=Not(Flag("exists"))))
    assert "update@0" not in tokens(late, (1,))
