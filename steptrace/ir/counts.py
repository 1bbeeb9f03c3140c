"""How often a step updates: what learning-rate schedules count, told by the program."""

from __future__ import annotations

from steptrace.ir.predicate import And, Every, Predicate
from steptrace.ir.program import Program, walk
from steptrace.ir.verify.ground import Ground
from steptrace.ir.verify.runs import Role, roles_of


def updates_of(program: Program, steps: int) -> int:
    """How many optimizer updates a program makes in ``steps`` steps, where no step is empty.

    That is the horizon of a learning-rate schedule: with two epochs of four mini-batches a step updates eight times. An
    update under a condition that only the run knows is counted as if it held.
    """
    ground = Ground(program)
    total = 0
    for op, loops in walk(program.body):
        if Role.APPLY not in roles_of(ground, op):
            continue
        in_step = 1
        for loop in loops:
            in_step *= 1 if loop.kind == "micro_batches" else loop.count or 1
        # A call that closes the step does so once, whichever micro-batch is the last: peeled copies and arms are one.
        counted = op.attr("closes") is None or (op.micro is None and bool(loops))
        total += in_step * _steps(op.when, steps) if counted else 0
    return total


def _steps(when: Predicate, steps: int) -> int:
    """In how many of the steps a condition can hold."""
    match when:
        case Every(period):
            return steps // period
        case And(terms):
            return min(_steps(term, steps) for term in terms)
    return steps
