"""Each layer refuses what it is for; controls show which layers alone can see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from schedule_cases import (
    AHEAD,
    arranged,
    body,
    edited,
    fused,
    peeled,
    pipelined,
    placed,
    saving_late,
    source,
    syncing_late,
    without,
)

from steptrace.check import check_schedule
from steptrace.check.validation import LAYERS, Budget, prove, validate
from steptrace.diag.base import SteptraceError
from steptrace.diag.schedule import HoldUpError
from steptrace.diag.validation import (
    CoverageError,
    CrashCutError,
    DeadlockError,
    FailureOrderError,
    NotASourceError,
    OtherContractError,
    RoomError,
    TranslationError,
)
from steptrace.ir import Loop, Op, OpKind, Program, verify

FEW = Budget(runs=100)


def refusing(program: Program, plain: Program) -> set[str]:
    """The layers that refuse a schedule, each asked alone."""
    return {layer for layer in LAYERS if not validate(program, plain, budget=FEW, layers=(layer,)).ok}


def with_first_twice() -> Program:
    """The first `next_mb` peeled, and still in the loop: nothing computes anything else."""
    program = source()
    loop = body(program)["micro_batches"]
    assert isinstance(loop, Loop)
    assert isinstance(loop.body[0], Op)
    names = {result.name: f"{result.name}.first" for result in loop.body[0].results}
    nodes = [*program.body]
    nodes.insert(nodes.index(loop), peeled(loop.body[0], names))
    return arranged(program, nodes)


def from_the_third() -> Program:
    """A loop that starts after two micro-batches, of which one was peeled."""
    program = pipelined()
    loop = body(program)["micro_batches"]
    assert isinstance(loop, Loop)
    return replace(program, body=tuple(replace(loop, start=2) if node is loop else node for node in program.body))


def calling_back_early() -> Program:
    """`on_step_end` before the save and the sync that may still fail."""
    moved = placed(source(), "on_step_end", before="save_checkpoint")
    assert body(moved).keys() == body(source()).keys()
    return moved


def reference_before_sync() -> Program:
    """At staleness 0: host waits for a micro-batch whose prompts wait for the sync behind it."""
    program = edited(
        pipelined(source(staleness=0), staged="none"), "ref_logps.first", lambda op: replace(op, lane="host")
    )
    return placed(program, "ref_logps.first", before="sync_weights")


def keeping() -> Program:
    """A step that keeps its parameters by an op of the user that cannot fail."""
    kind = OpKind("keep", reads=("params",), writes=("checkpoints",), may_fail=False, user=True)
    program = replace(source(), kinds=(kind,))
    whole = body(program)["save_checkpoint"]
    program = replace(program, body=tuple(Op("keep", "keep") if node is whole else node for node in program.body))
    return placed(program, "keep", after="update")


def taking_ahead(room: int) -> Program:
    """Groups taken one step ahead on the lane that trains, with room for so many steps; 0: for all."""
    program = source()
    for id in AHEAD:
        program = edited(program, id, lambda op: replace(op, shift=1))
    resources = (replace(one, capacity=room) if one.name == "host" else one for one in program.resources)
    return replace(program, resources=tuple(resources))


ONLY: list[tuple[str, Callable[[], tuple[Program, Program]], set[str], type[Exception]]] = [
    (
        "a release lost in the last step",
        lambda: (edited(pipelined(), "free", lambda op: replace(op, shift=-1)), source()),
        {"coverage"},
        CoverageError,
    ),
    ("an instance that runs twice", lambda: (with_first_twice(), source()), {"coverage"}, CoverageError),
    (
        "lanes that wait for each other",
        lambda: (reference_before_sync(), source(staleness=0)),
        {"order"},
        DeadlockError,
    ),
    (
        "two calls of a step swapped",
        lambda: (placed(pipelined(), "fwd_bwd.first", after="micro_batches"), source()),
        {"translation"},
        TranslationError,
    ),
    (
        "a release before the log",
        lambda: (placed(source(), "free", before="log"), source()),
        {"translation"},
        TranslationError,
    ),
    (
        "a place that is given back behind the op that needs it",
        lambda: (taking_ahead(room=1), source()),
        {"room"},
        RoomError,
    ),
    ("a callback before what may fail", lambda: (calling_back_early(), source()), {"failure"}, FailureOrderError),
    (
        "a step that saves before its update",
        lambda: (placed(source(), "save_checkpoint", before="update"),) * 2,
        {"crash"},
        CrashCutError,
    ),
    (
        "a checkpoint that the commit does not wait for, and that cannot fail",
        lambda: (edited(keeping(), "keep", lambda op: replace(op, lane="io")), keeping()),
        {"crash"},
        CrashCutError,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("make", "layers", "error"), [case[1:] for case in ONLY], ids=[case[0] for case in ONLY])
def test_control_only_its_layer_sees_it(
    make: Callable[[], tuple[Program, Program]], layers: set[str], error: type[Exception]
) -> None:
    program, plain = make()
    assert refusing(program, plain) == layers
    with pytest.raises(error):
        prove(program, plain, budget=FEW)


def test_control_only_the_graph_sees_a_take_that_holds_up_the_steps_before_it() -> None:
    program = taking_ahead(room=0)
    assert refusing(program, source()) == set()
    verify(program)
    with pytest.raises(HoldUpError):
        check_schedule(program, source())


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda: placed(source(), "sync_weights", before="update"), "ST143"),
        (lambda: without(source(), "commit"), "ST148"),
        (lambda: placed(source(), "commit", before="take"), "ST150"),
    ],
)
def test_control_only_its_structure_is_wrong_with_a_step_that_is_its_own_source(
    make: Callable[[], Program], code: str
) -> None:
    program = make()
    check_schedule(program, program)
    assert refusing(program, program) == set()
    with pytest.raises(SteptraceError) as refused:
        verify(program)
    assert refused.value.code == code


SEVERAL = [
    ("a loop that starts too late", from_the_third, "coverage"),
    ("an update that is never applied", lambda: without(pipelined(), "apply_deferred_update"), "coverage"),
    ("an update both carried and called", lambda: edited(source(), "fwd_bwd", closing_with_update), "coverage"),
    (
        "a stamp taken before the update",
        lambda: placed(pipelined(), "save_checkpoint", before="apply_deferred_update"),
        "translation",
    ),
    (
        "a sync before the update",
        lambda: placed(pipelined(), "sync_weights", before="apply_deferred_update"),
        "translation",
    ),
    ("a commit before its sync", lambda: placed(pipelined(), "commit", before="sync_weights"), "translation"),
    ("a log before its commit", lambda: placed(source(), "log", before="commit"), "translation"),
    (
        "a call sent before the update",
        lambda: placed(pipelined(), "fwd_bwd_staged.first", before="apply_deferred_update"),
        "translation",
    ),
    (
        "metrics that mix two steps",
        lambda: placed(pipelined(), "start_metrics", after="fwd_bwd_staged.first"),
        "translation",
    ),
    (
        "a checkpoint written before it is copied",
        lambda: placed(saving_late(source(), "host"), "write_checkpoint", before="snapshot_checkpoint"),
        "translation",
    ),
    ("a checkpoint that may fail after the sync", lambda: saving_late(source()), "failure"),
]


def closing_with_update(op: Op) -> Op:
    return replace(op, attrs=(("closes", "update"),))


@pytest.mark.parametrize(("make", "layer"), [case[1:] for case in SEVERAL], ids=[case[0] for case in SEVERAL])
def test_control_a_broken_schedule_is_refused(make: Callable[[], Program], layer: str) -> None:
    assert not validate(make(), source(), budget=Budget(runs=400), layers=(layer,)).ok
    with pytest.raises(SteptraceError):
        prove(make(), source(), budget=Budget(runs=400))


EQUAL = [
    ("the update carried by the last call", lambda: fused(source()), {}),
    ("the call sent whole", lambda: pipelined(staged="none"), {}),
    ("the stage after the update", lambda: pipelined(staged="after"), {}),
    ("weights transferred while the next step trains", lambda: syncing_late(source()), {}),
    ("the same, pipelined", lambda: syncing_late(pipelined()), {}),
    (
        "a checkpoint written late, where the contract lets it fail late",
        lambda: saving_late(source(saves="may_fail_late")),
        {"saves": "may_fail_late"},
    ),
    ("prompts sent before the first callback", lambda: placed(source(), "dispatch", before="on_step_begin"), {}),
]


@pytest.mark.parametrize(("make", "params"), [case[1:] for case in EQUAL], ids=[case[0] for case in EQUAL])
def test_equal_schedules_are_accepted(make: Callable[[], Program], params: dict[str, object]) -> None:
    report = validate(make(), source(**params), budget=FEW)
    assert report.ok, str(report)


def test_an_update_before_the_stage_is_slower_and_equal() -> None:
    """The stage is no training call: where it stands decides what it hides, not what is trained."""
    assert validate(placed(pipelined(), "apply_deferred_update", before="stage_fwd_bwd.first"), source(), budget=FEW).ok


def test_a_schedule_is_no_source() -> None:
    with pytest.raises(NotASourceError):
        validate(pipelined(), pipelined())


def test_contracts_must_agree() -> None:
    with pytest.raises(OtherContractError, match="staleness=1, that of the source staleness=0"):
        validate(pipelined(), source(staleness=0))
