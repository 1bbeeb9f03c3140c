"""`rename`, `relax` and `drop`: room, contract, and ops that nobody would miss."""

import pytest
from motion_views import changed, edge_of, plain, refusal

import steptrace
from steptrace.check import check_schedule, edges_of
from steptrace.check.proof import prove_equal
from steptrace.check.validation import Budget
from steptrace.ir import Program, parse_program, print_program
from steptrace.motion import Moved, Schedule, drop, peel, relax, rename, rotate
from steptrace.passes import run_pipeline

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


@steptrace.op(takes=("micro_batch",), reads=[], writes=["scratch"])
def glance(mb):
    return None


@steptrace.program(staleness=1)
def with_leftovers_in_the_loop(step):
    step.dispatch(prompts=4, samples=2)
    for mb in step.micro_batches(step.pack(step.advantages(step.reward(step.take())))):
        glance(mb)
        step.fwd_bwd(mb)
    step.update()
    metrics = step.get_metrics()
    step.sync_weights()
    step.commit()
    step.log(metrics)


def test_what_was_peeled_of_a_loop_goes_with_the_op_in_it():
    peeled = peel(Schedule.of(with_leftovers_in_the_loop.trace()), "micro_batches").schedule
    moved = drop(peeled, "glance")
    assert changed(peeled, moved) == ["- glance.first: glance at(m=0)", "- glance"]
    assert moved.forwarding == {"glance.first": (), "glance": ()}
    assert [op.id for op in moved.schedule.reference.ops()] == [op.id for op in moved.schedule.program.ops()]
    check_schedule(moved.schedule.program, moved.schedule.source)
    applied = [remark.kind for remark in run_pipeline(with_leftovers_in_the_loop.trace(), "take-ahead,dce").remarks]
    assert set(applied) == {"applied"}


def without_lines(program: Program, *ops: str) -> Program:
    """The program's text without the rows and the lines of some ops, read again."""
    lines = print_program(program).splitlines(keepends=True)
    kept = [line for line in lines if not any(f" {op}(" in line for op in ops)]
    return parse_program("".join(kept))


def test_the_text_of_a_schedule_without_them_equals_the_program_that_has_them():
    begun = with_leftovers_in_the_loop.trace()
    text = print_program(run_pipeline(begun, "dce").schedule.program)
    report = prove_equal(parse_program(text), begun, budget=Budget(runs=10))
    assert report.ok
    assert report.proved.endswith("; left out, and nobody misses it: `glance`")
    assert "left out" not in prove_equal(begun, begun, budget=Budget(runs=10)).proved


def test_control_without_an_op_that_is_seen_it_does_not():
    begun = with_leftovers.trace()
    short = without_lines(begun, "count_tokens", "average")
    assert check_schedule(short, begun).kinds == short.kinds
    shorter = without_lines(begun, "count_tokens", "average", "lengths", "show_lengths")
    assert refusal(lambda: check_schedule(shorter, begun)).code in ("ST200", "ST209")
