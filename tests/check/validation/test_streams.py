"""Runs of a streamed step beside its source in bulk; streams here are written by hand, no law has a part in them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from schedule_cases import placed, source

import steptrace
from steptrace.check.validation import LAYERS, Budget, validate
from steptrace.ir import Loop, Node, Op, Origin, Program, Result

FEW = Budget(runs=100)
BULK = ("take", "reward", "advantages", "pack")
ledger = steptrace.resource("streams_ledger")


@steptrace.op(takes=("micro_batch",), gives="micro_batch<weighted>", reads=["host[k]"])
def weighted(mb):
    return mb


@steptrace.op(takes=("micro_batch",), reads=["params"], writes=["streams_ledger"])
def account(mb):
    return None


@steptrace.op(takes=("groups<rewards>",), gives="groups<rewards>", reads=["host[k]"])
def best_half(groups):
    return groups


@steptrace.program(staleness=1)
def looking(step):
    step.dispatch(prompts=4, samples=2)
    for mb in step.micro_batches(step.pack(step.advantages(step.reward(step.take())))):
        step.fwd_bwd(weighted(mb))
    step.update()
    step.sync_weights()
    step.commit()


@steptrace.program(staleness=1)
def accounting(step):
    step.dispatch(prompts=4, samples=2)
    for mb in step.micro_batches(step.pack(step.advantages(step.reward(step.take())))):
        account(mb)
        step.fwd_bwd(mb)
    step.update()
    step.sync_weights()
    step.commit()


@steptrace.program(staleness=1)
def filtering(step):
    step.dispatch(prompts=4, samples=2)
    for mb in step.micro_batches(step.pack(step.advantages(best_half(step.reward(step.take()))))):
        step.fwd_bwd(mb)
    step.update()
    step.sync_weights()
    step.commit()


def streamed(program: Program, gone: tuple[str, ...] = BULK, estimator: str = "grpo") -> Program:
    """The program with groups packed as they arrive, in place of some ops."""
    (take,) = (node for node in program.body if node.id == "take")
    (loop,) = (node for node in program.body if isinstance(node, Loop))
    head = loop.body[0]
    assert isinstance(head, Op)
    assert isinstance(take, Op)
    head = replace(
        head,
        id="stream_mb",
        kind="stream_mb",
        args=(),
        results=(*head.results, Result("exists", take.results[1].type)),
        attrs=(("estimator", estimator),),
        origin=Origin("next_mb", "stream"),
    )
    nodes: list[Node] = [node for node in program.body if node.id not in gone]
    nodes[nodes.index(loop)] = replace(loop, over=None, body=(head, *loop.body[1:]))
    return replace(program, body=tuple(nodes))


def refusing(program: Program, plain: Program) -> set[str]:
    """The layers that refuse a schedule, each asked alone."""
    return {layer for layer in LAYERS if not validate(program, plain, budget=FEW, layers=(layer,)).ok}


def test_a_stream_is_the_bulk_drained_bit_by_bit() -> None:
    report = validate(streamed(source()), source())
    assert report.ok, str(report)
    assert {layer.name: layer.runs > 0 for layer in report.layers} == dict.fromkeys(LAYERS, True)


def test_control_a_take_beside_the_stream_takes_the_groups_twice() -> None:
    program = streamed(source(), gone=BULK[1:])
    finding = validate(program, source(), budget=FEW, layers=("coverage",)).counterexample
    assert finding is not None
    assert "`take@0` of the source runs more than once" in str(finding)


def test_control_without_its_stream_nothing_is_taken() -> None:
    program = streamed(source())
    (loop,) = (node for node in program.body if isinstance(node, Loop))
    empty = replace(program, body=tuple(replace(loop, body=loop.body[1:]) if n is loop else n for n in program.body))
    finding = validate(empty, source(), budget=FEW, layers=("coverage",)).counterexample
    assert finding is not None
    assert "of the source never runs" in str(finding)


def test_control_a_users_op_on_all_groups_is_no_part_of_a_stream() -> None:
    program = streamed(filtering.trace(), gone=(*BULK, "best_half"))
    assert refusing(program, filtering.trace()) >= {"coverage"}


def test_control_another_estimator_trains_something_else() -> None:
    assert refusing(streamed(source(), estimator="rloo"), source()) == {"translation"}


def test_control_who_looks_while_it_streams_finds_a_part() -> None:
    program = streamed(looking.trace())
    assert refusing(program, looking.trace()) == {"translation"}
    finding = validate(program, looking.trace(), budget=FEW).counterexample
    assert finding is not None
    assert "as pack@0 leaves it for the groups that have arrived" in str(finding)


def test_control_what_a_late_group_could_not_take_back() -> None:
    assert refusing(streamed(accounting.trace()), accounting.trace()) == {"failure"}


@pytest.mark.parametrize("op", ["commit", "log"])
def test_control_what_needs_the_last_group_stays_behind_the_stream(op: str) -> None:
    program = streamed(source())
    early = placed(program, op, before="micro_batches")
    assert "translation" in refusing(early, source())


def test_control_a_commit_ahead_of_an_empty_step_is_seen() -> None:
    plain = source()
    early = placed(streamed(plain), "commit", before="micro_batches")
    late = validate(streamed(plain), plain, budget=FEW, layers=("translation",))
    assert late.ok
    assert any(0 in setting.counts for setting in late.window.runs)
    assert not validate(early, plain, budget=FEW, layers=("translation",)).ok
