"""What schedules hold in memory, by hand; and a budget that copies for sync and checkpoint share."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

import pytest

from steptrace.cost import Judged, bytes_of, check_memory, judged, memory_of, parse_costs
from steptrace.diag.cost import OverMemoryError
from steptrace.lang.reference import resolve
from steptrace.passes import run_pipeline
from steptrace.passes.autoschedule import Autoschedule

NAME = 'grpo{staleness=1, save_every=2, saves="may_fail_late"}'
BOTH = "async-weight-sync,async-checkpoint"

COSTS = parse_costs(
    """\
[ops.fwd_bwd]
work = "10 s"
[ops.update]
work = "4 s"
[ops.sync_weights]
work = "6 s"
[ops.save_checkpoint]
work = "5 s"
[ops.other]
issue = "0 s"
[sizes]
params = "2 GB"
optimizer = "4 GB"
batch = "1 GB"
micro_batch = "100 MB"
[cell]
micro_batches = 2
"""
)


@lru_cache
def found(pipeline: str) -> Judged:
    return judged(run_pipeline(resolve(NAME), pipeline).schedule, COSTS.durations(), micro_batches=2)


def test_a_copy_for_each_and_a_step_on_the_host():
    held = found(BOTH).memory(COSTS)
    assert {one.what: (one.most, one.bytes, one.where) for one in held} == {
        "batch": (1, 1e9, "host"),
        "weight copies": (1, 2e9, "trainer"),
        "checkpoint copies": (1, 6e9, "trainer"),
    }
    assert bytes_of(held) == 9e9


def test_under_a_budget_for_one_the_larger_copy_counts():
    held = found(f"{BOTH},memory-budget{{copies=1}}").memory(COSTS)
    assert {one.room for one in held} == {None, 1}
    assert bytes_of(held) == 1e9 + 6e9


def test_control_a_budget_for_two_keeps_nothing_apart():
    assert bytes_of(found(f"{BOTH},memory-budget{{copies=2}}").memory(COSTS)) == 9e9


def test_what_is_too_much_is_refused_with_its_numbers():
    with pytest.raises(OverMemoryError) as refused:
        check_memory(found(BOTH).memory(COSTS), 3e9)
    assert refused.value.message == "the schedule may hold 9 GB at a time, and there is room for 3 GB"
    notes = [note.text for note in refused.value.notes]
    assert "1 x checkpoint copies: 6 GB of trainer memory" in notes
    assert "memory-budget{copies=1}" in refused.value.help
    check_memory(found(f"{BOTH},memory-budget{{copies=1}}").memory(COSTS), 7e9)


def test_copies_take_turns_over_time_under_a_budget():
    most = [
        max(size for _, size in found(pipeline).memory_over_time(COSTS)["trainer"])
        for pipeline in (BOTH, f"{BOTH},memory-budget{{copies=1}}")
    ]
    assert most == [8e9, 6e9]


def test_memory_over_time_by_hand():
    """A second to begin a step, twenty of micro-batches and four of the update; taken ahead, the next step is there."""
    costs = parse_costs(
        '[ops.on_step_begin]\nissue = "1 s"\n[ops.fwd_bwd]\nwork = "10 s"\n[ops.update]\nwork = "4 s"\n'
        '[ops.dispatch]\nwork = "2 s"\n[ops.other]\nissue = "0 s"\n[sizes]\nbatch = "1 GB"\n'
    )
    host = {}
    for pipeline in ("", "take-ahead"):
        schedule = run_pipeline(resolve("grpo{staleness=1,save_every=1000000}"), pipeline).schedule
        host[pipeline] = judged(schedule, costs.durations(), micro_batches=2).memory_over_time(costs)["host"]
    # generated from second 1 to 3, trained to 27, freed; the next step begins at once and is there after three more
    assert host[""][:4] == ((3.0, 1e9), (27.0, 0.0), (30.0, 1e9), (54.0, 0.0))
    assert max(size for _, size in host["take-ahead"]) == 2e9
    assert all(before[0] < after[0] for before, after in pairwise(host["take-ahead"]))


def test_what_has_no_known_size_is_left_out_and_told():
    run = found(BOTH).run
    held = memory_of(run, {"batch": 1.0})
    assert {one.what: one.bytes for one in held} == {"batch": 1.0, "weight copies": None, "checkpoint copies": None}
    assert bytes_of(held) == 1.0


@pytest.mark.slow
def test_a_search_keeps_within_the_memory_where_there_is_no_room_for_two_copies():
    search = Autoschedule(memory="8.5 GB", tries=100)
    kept = search.search(run_pipeline(resolve(NAME), "").schedule, COSTS)
    assert bytes_of(kept.judged.memory(COSTS)) <= 8.5e9
    free = Autoschedule(tries=100).search(run_pipeline(resolve(NAME), "").schedule, COSTS)
    assert bytes_of(free.judged.memory(COSTS)) > 8.5e9
    assert free.judged.period.seconds <= kept.judged.period.seconds
