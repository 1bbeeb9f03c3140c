"""What a counterexample says: the run, the channel and position, and the op that reads what it should not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from schedule_cases import body, edited, pipelined, placed, saving_late, source, without

from steptrace.check.validation import Budget, Finding, validate
from steptrace.ir import BUILTIN, Loop, Op, Program, Resource, ResourceKind, effects_of, overlaps


def found(program: Program, plain: Program, *layers: str) -> Finding:
    finding = validate(program, plain, layers=layers or ("translation",)).counterexample
    assert finding is not None
    return finding


def texts(finding: Finding) -> list[str]:
    return [finding.message, *(spot.text for spot in finding.spots)]


def test_a_stamp_taken_too_early_names_the_update_that_is_missing() -> None:
    early = placed(pipelined(), "save_checkpoint", before="apply_deferred_update")
    assert texts(found(early, source())) == [
        "entry 2 of `trainer.calls` is not that of the source",
        "source: update@0",
        "schedule: save_checkpoint@0",
        "save_checkpoint@0 reads `params` as it was at the start of the run",
        "in the source it reads `params` as update@0 left it",
    ]


def test_the_lines_are_those_of_the_user() -> None:
    finding = found(placed(source(), "log", before="commit"), source())
    lines = [spot.loc.line for spot in finding.spots if spot.loc is not None]
    plain = body(source())
    assert lines == [node.loc.line for node in (plain["log"], plain["commit"]) if node.loc is not None]
    assert "grpo.py" in finding.raised().render()


def test_calls_out_of_order_name_what_they_accumulate_on() -> None:
    swapped = placed(pipelined(), "fwd_bwd.first", after="micro_batches")
    assert texts(found(swapped, source()))[-2:] == [
        "fwd_bwd@(0,1) reads `grads` as it was at the start of the run",
        "in the source it reads `grads` as fwd_bwd@(0,0) left it",
    ]


def test_a_value_that_is_not_there_yet() -> None:
    program = source()
    loop = body(program)["micro_batches"]
    assert isinstance(loop, Loop)
    ahead = edited(program, "fwd_bwd", lambda op: replace(op, shift=1))
    assert "fwd_bwd@(0,0) reads `%mb.2` before it is made" in texts(found(ahead, program))


def test_an_attribute_that_was_changed() -> None:
    other = edited(source(), "advantages", lambda op: replace(op, attrs=(("estimator", "rloo"),)))
    assert "advantages@0 has other attributes than `advantages` of the source" in texts(found(other, source()))


def test_an_update_held_back_for_ever() -> None:
    finding = found(without(pipelined(), "apply_deferred_update"), source(), "coverage")
    assert finding.message == "`update@0` of the source never runs"
    assert str(finding.setting) == "1 step of 1 micro-batch"


def test_nothing_of_a_step_runs_before_it_is_known_to_exist() -> None:
    """The data may end before any step: only what stands before the take in the source may have run by then."""
    ahead = edited(source(), "commit", lambda op: replace(op, shift=1))
    assert found(ahead, source(), "coverage").message == "commit@0 runs before take@0 can know whether step 0 exists"
    begun = edited(source(), "on_step_begin", lambda op: replace(op, shift=1))
    assert validate(begun, source(), layers=("coverage",)).ok


def test_a_failure_names_what_stays() -> None:
    finding = found(saving_late(source()), source(), "failure")
    assert texts(finding)[:3] == [
        "sync_weights@0 may have run when write_checkpoint@0 fails",
        "write_checkpoint@0 fails",
        "sync_weights@0 has then changed `policy.version`, `rollout.weights`",
    ]
    assert "begins with step 9" in str(finding.setting), "the only checkpoint of the window"


def test_a_crash_names_the_micro_batch_that_is_lost() -> None:
    early = placed(source(), "save_checkpoint", before="update")
    assert found(early, early, "crash").message == (
        "a run that resumes from the checkpoint of step 0 never trains micro-batch @(0,0)"
    )


def test_a_hang_shows_the_ring() -> None:
    program = pipelined(source(staleness=0), staged="none")
    program = edited(program, "ref_logps.first", lambda op: replace(op, lane="host"))
    finding = found(placed(program, "ref_logps.first", before="sync_weights"), source(staleness=0), "order")
    assert [spot.text for spot in finding.spots] == [
        "lane host: sync_weights@0 waits for pack@1, which stands behind dispatch@1 on lane packer",
        "lane packer: dispatch@1 waits for sync_weights@0",
    ]


def test_flags_that_can_never_be_true_are_reported() -> None:
    report = validate(pipelined(source(staleness=0)), source(staleness=0), budget=Budget(runs=200))
    assert report.ok
    assert report.impossible
    assert "never true: fwd_bwd.stage@(1,0)" in str(report)


def clashes(first: Op, second: Op, program: Program) -> bool:
    """Whether two neighbours of a step need their order, from their effects and values alone."""
    if {result.name for result in first.results} & {use.name for use in second.args}:
        return True
    ours, theirs = (effects_of(op, BUILTIN[op.kind], program.contract) for op in (first, second))
    return any(
        overlaps(a.resource, b.resource)
        and "writes" in (a.access.value, b.access.value)
        and (a.index is None or b.index is None or a.index == b.index)
        for a in ours
        for b in theirs
    )


NEIGHBOURS = [
    (first.id, second.id)
    for first, second in zip(source().body, source().body[1:], strict=False)
    if isinstance(first, Op) and isinstance(second, Op)
]


@pytest.mark.parametrize(("first", "second"), NEIGHBOURS, ids=["-".join(pair) for pair in NEIGHBOURS])
def test_neighbours_change_places_exactly_where_no_effect_forbids_it(first: str, second: str) -> None:
    program = source(save_every=1)
    nodes = body(program)
    before, after = nodes[first], nodes[second]
    assert isinstance(before, Op)
    assert isinstance(after, Op)
    report = validate(placed(program, second, before=first), program, layers=("translation",))
    assert report.ok != clashes(before, after, program)


def test_a_resource_of_the_user_is_seen() -> None:
    """A callback that writes something of the user's: what it reads decides whether it may move."""
    program = edited(
        source(), "on_step_end", lambda op: replace(op, attrs=(("reads", ("mine",)), ("writes", ("mine",))))
    )
    program = edited(program, "on_step_begin", lambda op: replace(op, attrs=(("reads", ("mine",)), ("writes", ()))))
    program = replace(program, resources=(*program.resources, Resource("mine", ResourceKind.STATE)))
    late = edited(program, "on_step_begin", lambda op: replace(op, shift=1))
    assert validate(program, program).ok
    assert "on_step_begin@1 reads `mine`" in str(found(late, program))
