"""The whole answer to "does this schedule train what its source trains": the graph first, then every layer of runs."""

from __future__ import annotations

from dataclasses import replace

from steptrace.check.bounds import unbounded
from steptrace.check.dead import unseen_gone, without_unseen
from steptrace.check.edges import edges_of
from steptrace.check.head_law import ASSUMES_HEAD, head_of
from steptrace.check.places import lanes_of
from steptrace.check.schedule import check_schedule
from steptrace.check.stream_law import assumptions_of
from steptrace.check.validation import Budget, Report, check_source, validate
from steptrace.check.waits import waits_of
from steptrace.ir.program import Program


def prove_equal(program: Program, source: Program, *, budget: Budget | None = None) -> Report:
    """Shows that a schedule equals its source, or refuses it.

    The order of its ops is proved by the graph for all numbers of steps and micro-batches; then schedule and source are
    run side by side (``steptrace.check.validation``), which shares nothing with that proof.

    Args:
      program: the schedule.
      source: the program it was derived from; the program itself is a schedule of itself. Ops of it that nobody would
        miss may be left out.
      budget: how many runs may be tried.

    Returns:
      The report, without a counterexample.

    Raises:
      SteptraceError: the source is itself a schedule; an op is missing or is not the source's, an edge is broken, the
        lanes would lock up, a capacity is exceeded; or a run was found in which the two differ.
    """
    check_source(source)
    gone = unseen_gone(program, source)
    reference = check_schedule(program, source)
    left_out = ", ".join(f"`{id}`" for id in gone)
    proved = _proved(program, reference) + (f"; left out, and nobody misses it: {left_out}" if gone else "")
    report = validate(program, without_unseen(program, source), budget=budget, proved=proved)
    report = replace(report, assumed=_assumed(program))
    if report.counterexample is not None:
        raise report.counterexample.raised()
    return report


def _assumed(program: Program) -> tuple[str, ...]:
    """What the laws that were applied take for granted about the parts that are bound."""
    return (*assumptions_of(program), *((ASSUMES_HEAD,) if head_of(program) is not None else ()))


def _proved(program: Program, reference: Program) -> str:
    """What the graph has shown, in words."""
    edges, lanes = edges_of(reference, program), lanes_of(program)
    counted = f"{len(edges)} edges kept"
    if len(lanes) == 1:
        return f"order and capacity: {counted} by the order of the one lane"
    waits = len(waits_of(program, reference))
    free = " and ".join(f"`{name}`" for name in unbounded(program, reference))
    return (
        f"order, liveness and capacity: {counted} by the order of {len(lanes)} lanes and {waits} waits, "
        "with no circle among them" + (f"; no bound is declared on how many steps of {free} it holds" if free else "")
    )
