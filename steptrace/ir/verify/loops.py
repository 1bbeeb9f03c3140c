"""Loops: what they run over, what their bodies start with, and conditions that speak of their rounds."""

from __future__ import annotations

from steptrace.diag.structure import (
    BadLoopError,
    MicroBatchConditionError,
    MicroBatchSourceError,
    NestedMicroBatchesError,
    StreamedStepEstimatorError,
)
from steptrace.ir.builtin import STEP_ESTIMATORS
from steptrace.ir.predicate import ALWAYS, Last, MicroIs
from steptrace.ir.program import Loop, Op
from steptrace.ir.verify.conditions import facts_of
from steptrace.ir.verify.ground import Ground
from steptrace.ir.verify.values import SOURCES, Spot


def check_loops(ground: Ground, nodes: list[Spot]) -> None:
    """Loops have a body, a count where they need one, and the op that hands out what a round works on."""
    for spot in nodes:
        if isinstance(spot.node, Loop):
            _check_loop(ground, spot.node, spot.loops)
        else:
            _check_in_loops(ground, spot.node, spot.loops)


def _check_loop(ground: Ground, loop: Loop, around: tuple[Loop, ...]) -> None:
    if not loop.body:
        ground.report(BadLoopError, f"loop `{loop.id}` is empty", loop)
        return
    if loop.kind != "micro_batches" and loop.count is None:
        ground.report(BadLoopError, f"loop `{loop.id}` does not say how often it runs", loop, help="write `times N`")
    if loop.count is not None and loop.count < 1:
        ground.report(BadLoopError, f"loop `{loop.id}` runs {loop.count} times", loop)
    if loop.start < 0 or (loop.start and loop.kind != "micro_batches"):
        ground.report(BadLoopError, f"loop `{loop.id}` starts from {loop.start}", loop)
    if loop.kind == "micro_batches" and any(outer.kind == "micro_batches" for outer in around):
        message = f"loop `{loop.id}` runs over micro-batches inside a loop over micro-batches"
        ground.report(NestedMicroBatchesError, message, loop)
        return
    if loop.kind != "repeat":
        _check_source(ground, loop)


def _check_source(ground: Ground, loop: Loop) -> None:
    """The first op of the body, and no other, hands out the round's part."""
    kinds = [kind for kind, at in SOURCES.items() if at == loop.kind]
    first, others = loop.body[0], loop.body[1:]
    wanted = " or ".join(f"`{kind}`" for kind in kinds)
    if not isinstance(first, Op) or first.kind not in kinds:
        message = f"the first op of loop `{loop.id}` is {wanted}, which hands out what a round works on"
        ground.report(MicroBatchSourceError, message, first)
        return
    for other in others:
        if isinstance(other, Op) and other.kind in kinds:
            message = f"loop `{loop.id}` hands out two parts a round: `{first.id}` and `{other.id}`"
            ground.report(MicroBatchSourceError, message, other)
    if first.when != ALWAYS:
        message = f"`{first.id}` starts a round of loop `{loop.id}`, so it runs under no condition"
        ground.report(MicroBatchSourceError, message, first, "when")
    over = first.args[0] if first.args else None
    if loop.over != over:
        what = "a stream" if over is None else f"`{over}`"
        runs = "a stream" if loop.over is None else f"`{loop.over}`"
        message = f"loop `{loop.id}` runs over {runs}, and `{first.id}` takes its parts from {what}"
        ground.report(MicroBatchSourceError, message, loop, str(loop.over))


def _check_in_loops(ground: Ground, op: Op, around: tuple[Loop, ...]) -> None:
    home, peeled = SOURCES.get(op.kind), op.micro is not None
    if home is not None and not peeled and (not around or around[-1].kind != home):
        message = f"`{op.id}` hands out the parts of a loop over {home.replace('_', '-')}, and stands in none"
        ground.report(MicroBatchSourceError, message, op)
    inside = any(loop.kind == "micro_batches" for loop in around)
    if op.micro is not None and (inside or op.micro < 0):
        message = f"`{op.id}` stands for micro-batch {op.micro}, which only an op outside the loop can"
        ground.report(MicroBatchConditionError, message, op)
    if not inside and not peeled:
        for fact in facts_of(op.when):
            if isinstance(fact, Last | MicroIs):
                message = f"`{op.id}` runs when `{op.when}`, and stands in no loop over micro-batches"
                ground.report(MicroBatchConditionError, message, op, "when")
                break
    estimator = op.attr("estimator")
    if estimator in STEP_ESTIMATORS and any(loop.kind != "repeat" for loop in around):
        message = f"the estimator `{estimator}` needs every group of the step, and the loop has only a part of them"
        ground.report(StreamedStepEstimatorError, message, op, "attr estimator")
