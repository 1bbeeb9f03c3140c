"""`rename`, `relax` and `drop`: room, contract, and ops that nobody would miss."""

import pytest
from motion_views import changed, edge_of, plain, refusal

import steptrace
from steptrace.check import edges_of
from steptrace.ir import print_program
from steptrace.motion import Moved, Schedule, drop, relax, rename, rotate

scratch = steptrace.resource("scratch", doc="numbers that nobody reads")
scratch_too = steptrace.resource("scratch_too", doc="numbers made of those")
read_by_log = steptrace.resource("read_by_log", doc="numbers that an op reads")


@steptrace.op(takes=("groups",), reads=["host[k]"], writes=["scratch"])
def count_tokens(groups):
    return None


@steptrace.op(reads=["scratch"], writes=["scratch_too"])
def average():
    return None


@steptrace.op(takes=("groups",), reads=["host[k]"], writes=["read_by_log"])
def lengths(groups):
    return None


@steptrace.op(reads=["read_by_log"], writes=["log"])
def show_lengths():
    return None


@steptrace.program
def with_leftovers(step):
    step.dispatch(prompts=4, samples=2)
    groups = step.take()
    count_tokens(groups)
    average()
    lengths(groups)
    show_lengths()
    for mb in step.micro_batches(step.pack(step.advantages(step.reward(groups)))):
        step.fwd_bwd(mb)
    step.update()
    metrics = step.get_metrics()
    step.sync_weights()
    step.commit()
    step.log(metrics)


def resources(moved: Moved) -> list[str]:
    return [line for line in print_program(moved.schedule.program).splitlines() if line.startswith("resource")]


def test_host_memory_becomes_a_ring():
    begun = plain()
    moved = rename(begun, "host", capacity=2)
    assert "resource host : cell(2)" in resources(moved)
    assert "free -> take (2) capacity host" in [str(edge) for edge in edges_of(moved.schedule.reference)]
    assert changed(begun, moved) == []


def test_a_queue_that_is_too_small_for_the_schedule():
    ahead = rotate(plain(), "dispatch", above="take").schedule
    assert "resource queue.groups : fifo(2)" in resources(rename(ahead, "queue.groups", capacity=2))
    error = refusal(lambda: rename(ahead, "queue.groups", capacity=1))
    assert (error.code, edge_of(error)) == ("ST206", "take -> dispatch (1)")


@pytest.mark.parametrize(("resource", "capacity"), [("params", 2), ("hosts", 2), ("host", 0)])
def test_what_has_no_cells_to_count(resource: str, capacity: int):
    assert refusal(lambda: rename(plain(), resource, capacity=capacity)).code == "ST281"


def test_staleness_is_a_change_of_the_contract():
    begun = plain("grpo")
    moved = relax(begun, staleness=1)
    assert moved.obligation.class_ == moved.obligation.discharged == "contract"
    assert moved.schedule.source == plain("grpo{staleness=1}").source
    assert rotate(moved.schedule, "dispatch", above="take")


def test_control_before_it_the_dispatch_stays():
    assert edge_of(refusal(lambda: rotate(plain("grpo"), "dispatch", above="take"))) == "sync_weights -> dispatch (1)"


@pytest.mark.parametrize(
    "clauses",
    [{}, {"staleness": 1}, {"staleness": 0}, {"staleness": True}, {"partial": "train"}, {"wieghts": "freshest"}],
)
def test_what_does_not_relax(clauses: dict[str, object]):
    assert refusal(lambda: relax(plain(), **clauses)).code == "ST288"


def test_a_contract_is_not_tightened():
    late = relax(plain(), saves="may_fail_late").schedule
    assert refusal(lambda: relax(late, saves="before_sync")).code == "ST288"


def test_ops_that_only_feed_one_another_are_left_out():
    begun = Schedule.of(with_leftovers.trace())
    moved = drop(begun, ("count_tokens", "average"))
    assert changed(begun, moved) == ["- count_tokens", "- average"]
    assert "resource scratch : state" not in resources(moved)
    assert [kind.name for kind in moved.schedule.program.kinds] == ["lengths", "show_lengths"]
    assert moved.forwarding == {"count_tokens": (), "average": ()}


@pytest.mark.parametrize("op", ["lengths", "show_lengths", "reward", "log"])
def test_what_is_seen_stays(op: str):
    assert refusal(lambda: drop(Schedule.of(with_leftovers.trace()), op)).code == "ST290"
