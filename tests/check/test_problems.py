"""Orders that are accepted, and what is said about those that are not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from steptrace.check import check_order, check_schedule, edges_of, find_cycle, legal_places, problems, waits_of
from steptrace.diag import SteptraceError
from steptrace.diag.schedule import (
    CapacityError,
    DeadlockError,
    HoldUpError,
    LoopLanesError,
    NegativeShiftError,
    OrderError,
)
from steptrace.ir import Loop, Op, OpKind, Program, Resource, ResourceKind, verify
from steptrace.lang.reference import resolve
from tests.check.boundary import moved, pipelined, reference, source

PLAIN = source()


def first_problem(program: Program, plain: Program = PLAIN) -> SteptraceError:
    with pytest.raises(SteptraceError) as raised:
        check_schedule(program, plain)
    return raised.value


def test_the_pipelined_boundary_is_legal_live_and_well_formed() -> None:
    schedule = pipelined(PLAIN)
    verify(schedule)
    assert check_schedule(schedule, PLAIN) == reference(PLAIN)


def test_its_waits() -> None:
    shown = [
        f"{wait.to_lane}{f' ({wait.device})' * bool(wait.device)}: {wait.edge}"
        for wait in waits_of(pipelined(PLAIN), reference(PLAIN))
    ]
    assert shown == [
        "packer: sync_weights -> dispatch (2) raw rollout.weights[k-2]",
        "packer: free -> take (2) capacity host",
        "host: ref_logps.first -> fwd_bwd.first (0) value %mb.2.first",
        "host: pack -> next_mb (0) value %batch",
        "host: take -> apply_deferred_update (0) exists %exists",
        "host (trainer): apply_deferred_update -> save_checkpoint (0) raw params",
        "host (trainer): start_metrics -> fetch_metrics (0) raw trainer.record[k]",
        "host: pack -> log (0) raw host[k]",
        "host: next_mb.first -> free (0) war host[k]",
    ]


@pytest.mark.parametrize(
    ("op", "before", "edge"),
    [
        ("sync_weights", "update", "update"),
        ("commit", "sync_weights", "sync_weights"),
        ("log", "commit", "commit"),
        ("save_checkpoint", "update", "update"),
        ("free", "log", "log"),
        ("get_metrics", "update", "update"),
        ("on_step_end", "get_metrics", "get_metrics"),
        ("pack", "advantages", "advantages"),
    ],
)
def test_a_step_out_of_order_is_refused_by_the_edge_it_breaks(op: str, before: str, edge: str) -> None:
    problem = first_problem(moved(PLAIN, op, before=before))
    assert isinstance(problem, OrderError)
    assert problem.message == f"`{op}` of step k would run before `{edge}` of step k"


def test_a_refused_order_says_why_by_how_much_and_where_it_would_be_legal() -> None:
    problem = first_problem(moved(PLAIN, "commit", before="sync_weights"))
    assert problem.code == "ST204"
    texts = [note.text for note in problem.notes]
    assert "policy version" in texts[0]
    assert texts[1:] == [
        "lane host comes to `commit` first, in one pass over the step (slack 0)",
        "legal for `commit`: after `sync_weights` and before `log`",
    ]
    assert problem.loc is not None
    assert problem.notes[0].loc is not None


def test_at_staleness_0_taking_ahead_names_the_declaration_that_would_allow_it() -> None:
    fresh = source(staleness=0)
    ahead = replace(fresh, body=tuple(replace(n, shift=1) if n.id == "dispatch" else n for n in fresh.body))
    problem = next(p for p in problems(ahead, fresh) if "sync_weights" in p.message)
    assert problem.message == "`dispatch` of step k+1 would run before `sync_weights` of step k"
    assert problem.help == (
        "with staleness=1 it would be legal: rollouts are then made with weights that are an update older"
    )


def test_sending_before_the_update_is_refused() -> None:
    problem = first_problem(moved(pipelined(PLAIN), "fwd_bwd_staged.first", before="apply_deferred_update"))
    assert isinstance(problem, OrderError)
    assert "before `apply_deferred_update` of step k" in problem.message


def test_a_stage_before_its_micro_batch_is_packed_is_refused_on_one_lane() -> None:
    problem = first_problem(moved(pipelined(PLAIN), "stage_fwd_bwd", before="dispatch", lane="packer"))
    assert isinstance(problem, OrderError)
    assert problem.message == "`stage_fwd_bwd` of step k would run before `ref_logps.first` of step k"


def test_a_take_ahead_on_the_lane_of_the_boundary_is_a_hold_up() -> None:
    schedule = pipelined(PLAIN)
    ahead = {"dispatch", "take", "reward", "advantages", "pack", "next_mb.first", "ref_logps.first"}
    host = replace(schedule, body=tuple(replace(n, lane="host") if n.id in ahead else n for n in schedule.body))
    assert {type(problem) for problem in problems(host, reference(PLAIN))} == {HoldUpError}


def test_a_take_ahead_behind_the_boundary_holds_up_nothing() -> None:
    fresh = source(staleness=1)
    names = ("dispatch", "take", "reward", "advantages", "pack")
    rest = [node for node in fresh.body if node.id not in names]
    ahead = [replace(node, shift=1) for node in fresh.body if node.id in names]
    check_order(replace(fresh, body=(*rest, *ahead)), fresh)


def test_more_than_the_capacity_is_refused() -> None:
    fresh = source(staleness=1)
    bound = replace(fresh, resources=tuple(replace(r, capacity=1) if r.name == "host" else r for r in fresh.resources))
    names = ("dispatch", "take", "reward", "advantages", "pack")
    rest = [node for node in bound.body if node.id not in (*names, "free")]
    ahead = [replace(node, shift=1) for node in bound.body if node.id in names]
    free = [node for node in bound.body if node.id == "free"]
    check_order(replace(bound, body=(*rest, *free, *ahead)), bound)
    late = next(problems(replace(bound, body=(*rest, *ahead, *free)), bound))
    assert isinstance(late, CapacityError)
    assert "capacity of 2" in late.help


def chat(reads: str, writes: str, name: str, lane: str) -> tuple[OpKind, Op]:
    return OpKind(name, reads=(reads,) if reads else (), writes=(writes,), user=True), Op(name, name, lane=lane)


def small(*rows: tuple[OpKind, Op], resources: tuple[Resource, ...]) -> Program:
    return Program("small", resources=resources, kinds=tuple(r for r, _ in rows), body=tuple(o for _, o in rows))


def crossed() -> Program:
    """Two lanes, each of which begins with what needs the end of the other."""
    states = tuple(Resource(name, ResourceKind.STATE) for name in ("x", "y"))
    program = small(
        chat("", "x", "a", "one"),
        chat("x", "x", "b", "two"),
        chat("", "y", "c", "two"),
        chat("y", "y", "d", "one"),
        resources=states,
    )
    a, b, c, d = program.body
    return replace(program, body=(d, b, c, a))


def test_a_lock_up_is_refused_with_its_circle() -> None:
    program = crossed()
    source_ = replace(program, body=tuple(sorted(program.body, key=lambda node: node.id)))
    problem = next(problems(program, source_))
    assert isinstance(problem, DeadlockError)
    assert len(find_cycle(program, edges_of(source_))) == 4
    assert [note.text.split(":")[0] for note in problem.notes] == [
        "`b` of step k waits for `a` of step k",
        "lane two runs `b` of step k before `c` of step k",
        "`d` of step k waits for `c` of step k",
        "lane one runs `d` of step k before `a` of step k",
    ]


def test_control_the_same_lanes_in_order_do_not_lock_up() -> None:
    program = crossed()
    source_ = replace(program, body=tuple(sorted(program.body, key=lambda node: node.id)))
    check_order(source_, source_)


def test_behind_its_place_an_op_would_miss_the_last_step() -> None:
    with pytest.raises(NegativeShiftError):
        check_order(moved(PLAIN, "log", shift=-1), PLAIN)


def test_a_loop_over_epochs_has_one_lane() -> None:
    plain = resolve("grpo_epochs")
    spread = replace(plain, body=tuple(_spread(node) if isinstance(node, Loop) else node for node in plain.body))
    with pytest.raises(LoopLanesError):
        check_order(spread, plain)


def _spread(loop: Loop) -> Loop:
    inner = loop.body[0]
    assert isinstance(inner, Loop)
    first = inner.body[0]
    return replace(loop, body=(replace(inner, body=(replace(first, lane="packer"), *inner.body[1:])),))


def test_legal_places_follow_the_shift_and_the_lane() -> None:
    assert str(legal_places(PLAIN, PLAIN, "on_step_end")) == "after `get_metrics`"
    assert str(legal_places(PLAIN, PLAIN, "free")) == "after `log`"
    assert str(legal_places(PLAIN, PLAIN, "dispatch", shift=1)) == "anywhere on lane host, 1 step ahead"
    assert str(legal_places(PLAIN, PLAIN, "dispatch", shift=2)) == "after `sync_weights`, 2 steps ahead"
    assert str(legal_places(PLAIN, PLAIN, "take", shift=1)).startswith("nowhere on lane host, 1 step ahead")
    assert str(legal_places(PLAIN, PLAIN, "log", lane="io")) == "anywhere on lane io"
    assert str(legal_places(PLAIN, PLAIN, "ref_logps")) == "after `next_mb` and before `fwd_bwd`"
