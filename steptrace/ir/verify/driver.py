"""Runs the structural checks, in the order in which their answers matter to a reader."""

from __future__ import annotations

from steptrace.diag.base import SteptraceError
from steptrace.ir.places import Places
from steptrace.ir.program import Program
from steptrace.ir.verify.forms import check_contract, check_names, check_ops, check_resources, check_rows
from steptrace.ir.verify.ground import Ground
from steptrace.ir.verify.loops import check_loops
from steptrace.ir.verify.order import check_order
from steptrace.ir.verify.rollouts import check_rollouts
from steptrace.ir.verify.runs import Runner
from steptrace.ir.verify.training import check_training
from steptrace.ir.verify.values import check_unused, check_values, spots


def problems(program: Program, places: Places | None = None, *, own_order: bool = False) -> list[SteptraceError]:
    """Every structural problem of a program, the most telling first.

    When an item is wrong by itself (an unknown op, an attribute of the wrong type), only such problems are
    listed: what they mean for the rest cannot be said.

    Args:
      program: traced, built by hand, or parsed.
      places: of a parsed program (``steptrace.ir.parser.Parsed.places``); the problems then point into the text,
        and name the line of the DSL in a note.
      own_order: whether the program is the source of its own order, no schedule of another one; then cells of a step
        must be written above who reads them.
    """
    ground = Ground(program, places)
    nodes = spots(ground)
    check_contract(ground)
    check_rows(ground)
    check_names(ground, tuple(spot.node for spot in nodes))
    check_ops(ground)
    if ground.found:
        return ground.found
    runs = list(Runner(ground).runs())
    check_loops(ground, nodes)
    check_training(ground, runs)
    check_values(ground, nodes)
    check_rollouts(ground, runs)
    check_unused(ground, nodes)
    if own_order:
        check_order(ground, runs)
    check_resources(ground)
    return ground.found


def verify(program: Program, places: Places | None = None, *, own_order: bool = False) -> None:
    """Refuses a program that is not well formed; see ``problems``.

    Raises:
      SteptraceError: the first of its problems.
    """
    for problem in problems(program, places, own_order=own_order):
        raise problem
