"""The grid: lanes across, time down, each entry as early as its lane and the edges allow."""

from __future__ import annotations

from dataclasses import replace

from steptrace.check.edges import edges_of
from steptrace.check.grid import grid_view
from steptrace.ir import Program
from steptrace.lang.reference import resolve
from steptrace.motion import Schedule, move_to_lane
from steptrace.passes import run_pipeline

PLAIN = resolve("grpo{staleness=1}")

STEP = """\
program grpo: 1 steps of 2 micro-batches
    host
0   on_step_begin@0
1   dispatch@0
2   take@0
3   reward@0
4   advantages@0
5   pack@0
6   next_mb.0@0
7   ref_logps.0@0
8   fwd_bwd.0@0
9   next_mb.1@0
10  ref_logps.1@0
11  fwd_bwd.1@0
12  update@0
13  get_metrics@0
14  sync_weights@0
15  commit@0
16  log@0
17  on_step_end@0
18  free@0
op.micro-batch@step; one entry takes one line of time; ? runs if its condition holds in the run
"""


def column(view: str, lane: str) -> list[str]:
    """What a lane runs, line by line."""
    rows = [line.split() for line in view.splitlines()[1:] if line[:1].isdigit() or line.startswith(" ")]
    return [row[1 + rows[0].index(lane)] for row in rows[1:]]


def test_one_lane_runs_one_after_the_other():
    assert grid_view(PLAIN, steps=1) == STEP


def test_steps_have_micro_batches_of_their_own_number():
    tokens = column(grid_view(PLAIN, steps=3, counts=(2, 0, 1)), "host")
    assert [token for token in tokens if token.startswith("fwd_bwd")] == ["fwd_bwd.0@0", "fwd_bwd.1@0", "fwd_bwd.0@2"]


def test_every_n_is_seen_and_what_only_the_run_knows_is_marked():
    schedule = run_pipeline(PLAIN, "pipelined-boundary").schedule
    tokens = column(grid_view(schedule.program, steps=10, counts=(1,)), "host")
    assert [token for token in tokens if token.startswith("save")] == ["save_checkpoint@9"]
    assert "fwd_bwd_staged.0@1?" in tokens
    assert "fwd_bwd.0@1?" in tokens


def test_a_lane_of_its_own_runs_ahead_as_far_as_the_edges_allow():
    schedule = run_pipeline(PLAIN, "take-ahead").schedule
    free = grid_view(schedule.program, steps=4)
    bound = grid_view(schedule.program, steps=4, edges=edges_of(schedule.reference))
    assert column(free, "packer").index("take@3") == column(free, "packer").index("take@2") + 7
    assert column(bound, "packer").index("take@3") > column(bound, "host").index("free@1")
    assert column(bound, "packer").index("dispatch@3") > column(bound, "host").index("sync_weights@1")


def test_shifted_micro_batches_run_a_round_ahead():
    schedule = run_pipeline(PLAIN, "pipeline-micro-batches").schedule
    tokens = column(grid_view(schedule.program, steps=1, counts=(3,)), "host")
    inner = [token for token in tokens if token.split(".")[0] in ("next_mb", "fwd_bwd")]
    assert inner == [f"{op}@0" for op in ("next_mb.0", "next_mb.1", "fwd_bwd.0", "next_mb.2", "fwd_bwd.1", "fwd_bwd.2")]


def test_a_broken_edge_is_marked_and_told():
    edge = next(edge for edge in edges_of(PLAIN) if (edge.before, edge.after) == ("sync_weights", "commit"))
    view = grid_view(moved(PLAIN, "commit", "sync_weights"), steps=1, broken=edge)
    assert [token for token in column(view, "host") if token.startswith("!")] == ["!commit@0", "!sync_weights@0"]
    assert f"! broken: {edge.reason}" in view


def moved(program: Program, op: str, before: str) -> Program:
    node = next(node for node in program.body if node.id == op)
    rest = [other for other in program.body if other.id != op]
    at = next(at for at, other in enumerate(rest) if other.id == before)
    return replace(program, body=(*rest[:at], node, *rest[at:]))


def test_a_schedule_that_hangs_is_drawn_all_the_same():
    fresh = resolve("grpo")
    stuck = replace(
        fresh,
        body=tuple(
            replace(node, lane="packer", shift=int(node.id == "dispatch")) if node.id in ("dispatch", "take") else node
            for node in fresh.body
        ),
    )
    tokens = column(grid_view(stuck, steps=2, edges=edges_of(fresh)), "packer")
    assert [token for token in tokens if token != "."] == ["dispatch@0", "dispatch@1", "take@0", "take@1"]


def test_a_loop_over_epochs_is_one_entry():
    tokens = column(grid_view(resolve("grpo_epochs"), steps=1), "host")
    assert [token for token in tokens if token.startswith(("repeat", "fwd_bwd"))] == ["repeat@0"]


def test_control_without_edges_nothing_waits_on_another_lane():
    schedule = move_to_lane(Schedule.of(PLAIN), ("dispatch", "take"), lane="packer").schedule
    tokens = column(grid_view(schedule.program, steps=1, edges=()), "packer")
    assert tokens[:2] == ["dispatch@0", "take@0"]
