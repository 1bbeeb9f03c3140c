"""The law `release`: when a buffer is given back, how many are in use, and which layer refuses what."""

from __future__ import annotations

from functools import lru_cache

import pytest

import steptrace
from steptrace.check import check_schedule
from steptrace.check.edge import EdgeKind
from steptrace.check.edges import edges_of
from steptrace.check.reference import reference_of
from steptrace.check.validation import Budget, validate
from steptrace.check.waits import waits_of
from steptrace.diag import SteptraceError
from steptrace.diag.schedule import LawError
from steptrace.ir import Program, parse_program, print_program, verify
from steptrace.lang.reference import resolve
from steptrace.motion import Schedule, split
from steptrace.passes import run_pipeline
from steptrace.testing.edits import edited
from steptrace.testing.judge import judge
from steptrace.testing.runs import source_of
from steptrace.testing.soundness import waits_between

FEW = Budget(runs=100)
PLAIN = "release-buffers"
BOUNDARY = "pipelined-boundary,release-buffers"


@lru_cache
def derived(pipeline: str, name: str = "grpo{staleness=1}") -> Schedule:
    result = run_pipeline(resolve(name), pipeline)
    assert [remark for remark in result.remarks if remark.kind == "missed"] == []
    return result.schedule


def into(pipeline: str, op: str, what: str = "") -> list[tuple[str, int, int | None, str]]:
    """The edges that lead to an op: from where, steps, micro-batches, which end of the first."""
    found = edges_of(derived(pipeline).reference)
    return sorted(
        (one.before, one.distance, one.micro, one.from_event)
        for one in found
        if one.after == op and one.what.startswith(what)
    )


def broken(pipeline: str, *edits: str, name: str = "grpo{staleness=1}") -> Program:
    return parse_program(edited(print_program(derived(pipeline, name).program), "\n".join(edits)))


def _checked(program: Program, source: Program) -> None:
    verify(program)
    check_schedule(program, source)


def refusal(program: Program, name: str = "grpo{staleness=1}") -> str:
    """The code under which the graph, or the comparison with the source, refuses a schedule."""
    with pytest.raises(SteptraceError) as caught:
        _checked(program, resolve(name))
    return caught.value.code


def seen(program: Program, name: str = "grpo{staleness=1}") -> str:
    """The code under which validation, which knows no edges, refuses a schedule."""
    found = validate(program, resolve(name), budget=FEW).counterexample
    assert found is not None
    return found.raised().code


def test_a_release_waits_until_each_reader_is_done():
    assert into(PLAIN, "release", "%mb") == [("fwd_bwd", 0, 0, "done"), ("ref_logps", 0, 0, "done")]
    devices = {wait.before: wait.device for wait in waits_of(derived(PLAIN).program, derived(PLAIN).reference)}
    assert (devices["fwd_bwd"], devices["ref_logps"]) == ("trainer", "reference")


def test_what_ships_a_micro_batch_and_what_trains_the_shipped_one_read_it_too():
    readers = {before for before, *_ in into(BOUNDARY, "release.first", "%mb.first")}
    assert readers == {
        "ref_logps.first",
        "fwd_bwd.first",
        "stage_fwd_bwd",
        "fwd_bwd_staged.first",
        "poll_packed.first",
        "fwd_bwd.first.early",
    }


def test_an_attempt_and_what_may_run_it_again_are_readers():
    settled = {before for before, *_ in into("replay,release-buffers", "release", "%mb")}
    assert settled == {"ref_logps", "attempt_fwd_bwd", "settle"}


def test_the_next_call_waits_for_no_release_of_this_one():
    """Only who takes a buffer waits for one: the device is not kept waiting."""
    for pipeline in (PLAIN, BOUNDARY):
        waiting = {edge.after for edge in edges_of(derived(pipeline).reference) if edge.before.startswith("release")}
        assert waiting <= {"release", "release.first", "next_mb", "next_mb.first", "dispatch"}


@pytest.mark.parametrize(("ring", "apart"), [(3, 1), (4, 2), (6, 4)])
def test_the_ring_bounds_how_far_ahead_micro_batches_are_handed_out(ring: int, apart: int):
    found = into(f"release-buffers{{ring={ring}}}", "next_mb", "buffers.loop")
    assert ("release", 0, apart, "done") in found
    assert ("release", 1, None, "done") in found


def test_first_micro_batches_have_buffers_of_their_own():
    assert ("release.first", 2, None, "done") in into(BOUNDARY, "next_mb.first", "buffers.first")
    assert not any(before == "release" for before, *_ in into(BOUNDARY, "next_mb.first", "buffers"))


@pytest.mark.parametrize(
    ("name", "pipeline"),
    [
        ("grpo{staleness=1}", BOUNDARY),
        ("grpo{staleness=1}", "release-buffers,pipelined-boundary"),
        ("grpo{staleness=1}", "release-buffers,pipelined-boundary-replayed"),
        ("grpo_stream{staleness=1}", "release-buffers,take-ahead"),
        ("grpo{staleness=0}", "stream-micro-batches,release-buffers"),
        ("grpo{staleness=0}", "release-buffers,stream-micro-batches"),
    ],
)
def test_a_schedule_is_compared_with_its_source_by_its_text_alone(name: str, pipeline: str):
    schedule = derived(pipeline, name)
    program = parse_program(print_program(schedule.program))
    reference = reference_of(program, resolve(name))
    assert {op.id for op in reference.ops()} == {op.id for op in schedule.reference.ops()}
    assert validate(program, resolve(name), budget=FEW).counterexample is None
    assert judge(source_of(reference), program, waits_between(program, reference), [((2, 0, 3, 1), 0)]).equal


def test_the_law_and_other_laws_commute():
    one, other = derived("release-buffers,pipelined-boundary"), derived(BOUNDARY)
    assert {print_op(op) for op in one.reference.ops()} == {print_op(op) for op in other.reference.ops()}


def print_op(op: object) -> tuple[object, ...]:
    return tuple(getattr(op, name) for name in ("id", "kind", "args", "attrs", "results", "when", "micro", "origin"))


# -- controls --

ON_HOST = 'in release replace "lane=link" with "lane=host"'
EARLY = (ON_HOST, "move release before fwd_bwd")


def test_control_a_release_before_the_last_reader_is_refused_by_the_graph():
    assert refusal(broken(PLAIN, *EARLY)) == "ST204"


def test_control_a_first_release_a_step_early_is_refused():
    ahead = 'in release.first replace "lane=link at(m=0)" with "lane=host at(m=0) shift=+1"'
    early = broken(BOUNDARY, ahead, "move release.first after log")
    assert refusal(early) == "ST204"
    assert seen(early) == "ST253"


def test_control_a_release_before_the_last_reader_is_seen_without_edges():
    moved = broken(PLAIN, *EARLY)
    assert seen(moved) == "ST253"
    source = source_of(derived(PLAIN).reference)
    assert not judge(source, moved, waits_between(derived(PLAIN).program, derived(PLAIN).reference)).equal


def test_control_a_release_at_issue_is_seen_by_the_judge():
    """A lowering that waits until the calls are made, not until they are done, gives buffers back too early."""
    schedule = derived(PLAIN)
    waits = waits_between(schedule.program, schedule.reference)
    at_issue = tuple(wait._replace(done=False) if wait.after == "release" else wait for wait in waits)
    assert judge(source_of(schedule.reference), schedule.program, waits).equal
    verdict = judge(source_of(schedule.reference), schedule.program, at_issue)
    assert not verdict.equal
    assert "is done" in verdict.reason


def test_control_a_dropped_release_is_refused():
    dropped = broken(PLAIN, "drop release")
    assert refusal(dropped) == "ST203"
    assert seen(dropped) == "ST251"


def test_control_a_second_release_is_refused():
    text = print_program(derived(PLAIN).program)
    line = next(line for line in text.splitlines() if " release(" in line).strip()
    twice = broken(PLAIN, f"insert after release: release.2: {line}")
    assert refusal(twice) == "ST201"
    assert seen(twice) == "ST251"


def test_control_a_micro_batch_that_is_given_back_has_to_be_lent():
    assert refusal(broken(PLAIN, 'in next_mb replace " {lent=true}" with ""', _NOT_PUSHED)) == "ST203"


_NOT_PUSHED = 'in next_mb replace " writes[buffers.loop]" with ""'


@steptrace.program(staleness=1)
def looks_back(step: steptrace.Step) -> None:
    """Reads the micro-batch before this one."""
    step.dispatch(prompts=4, samples=2)
    groups = step.take()
    batch = step.pack(step.advantages(step.reward(groups)))
    for mb in step.micro_batches(batch):
        step.fwd_bwd(mb)
    step.update()
    step.sync_weights()
    step.commit()


def test_a_micro_batch_that_a_later_round_reads_is_not_given_back():
    text = print_program(looks_back.trace())
    late = parse_program(edited(text, 'in fwd_bwd replace "fwd_bwd(%mb)" with "fwd_bwd(%mb@m-1)"'))
    with pytest.raises(LawError, match="reads `%mb@m-1`"):
        split(Schedule.of(late), "next_mb", law="release")
    assert split(Schedule.of(looks_back.trace()), "next_mb", law="release")


@steptrace.op(takes=("micro_batch",), gives="micro_batch", reads=[], writes=[])
def weighed(mb):
    """Adds to a micro-batch."""
    return mb


@steptrace.op(takes=("micro_batch",), reads=[], writes=["log"])
def noted(mb):
    """Looks at a micro-batch."""


@steptrace.program(staleness=1)
def two_loops(step: steptrace.Step) -> None:
    """Looks at all micro-batches, then trains on them."""
    step.dispatch(prompts=4, samples=2)
    batch = step.pack(step.advantages(step.reward(step.take())))
    for mb in step.micro_batches(batch):
        noted(mb)
    for mb in step.micro_batches(batch):
        step.fwd_bwd(weighed(mb))
    step.update()
    step.sync_weights()
    step.commit()


def two() -> Schedule:
    result = run_pipeline(two_loops.trace(), PLAIN)
    assert [remark for remark in result.remarks if remark.kind == "missed"] == []
    return result.schedule


def test_users_ops_that_take_a_micro_batch_are_readers():
    readers = {edge.before for edge in edges_of(two().reference) if edge.kind is EdgeKind.LIFETIME}
    assert readers == {"noted", "weighed", "fwd_bwd"}


def test_of_two_loops_one_uses_the_ring_at_a_time():
    found = {
        (edge.before, edge.after, edge.distance, edge.micro)
        for edge in edges_of(two().reference)
        if edge.kind is EdgeKind.CAPACITY
    }
    assert found >= {
        ("release", "next_mb", 0, 2),
        ("release.2", "next_mb.2", 0, 2),
        ("release", "next_mb.2", 0, None),
        ("release.2", "next_mb", 1, None),
    }


def test_two_loops_hold_no_more_than_the_ring_has():
    schedule = two()
    assert validate(schedule.program, schedule.source, budget=FEW).counterexample is None
    waits = waits_between(schedule.program, schedule.reference)
    source = source_of(schedule.reference)
    assert judge(source, schedule.program, waits).equal
    without = [wait for wait in waits if (wait.before, wait.after) != ("release", "next_mb.2")]
    assert len(without) < len(waits)
    assert not judge(source, schedule.program, without).equal
