"""`steptrace why PROGRAM A before B`: the shortest chain of reasons for an order."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from absl import flags

from ..command import Command, UsageError

if TYPE_CHECKING:
    from steptrace.ir.program import Program


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "against", "", "the program that it is a schedule of: a schedule does not say why", flag_values=values
    )


def _run(operands: list[str], values: flags.FlagValues) -> int:
    from steptrace.check.edges import edges_of
    from steptrace.check.reasons import instance, reason_of
    from steptrace.check.units import units_of
    from steptrace.check.why import shortest_chain
    from steptrace.diag.base import place_of
    from steptrace.diag.schedule import UnorderedError

    name, first, word, last = operands
    if word != "before":
        raise UsageError(f"`why` asks for an order: why {name} {first} before {last}")
    reference = _reference(name, values.against)
    try:
        chain = shortest_chain(reference, first, last)
    except UnorderedError as error:
        if error.notes:
            error.help = _asked(name, last, first, values.against)
        raise
    units, step, rows = units_of(reference), 0, []
    for edge in chain:
        loc = units[edge.after].loc
        rows.append((reason_of(edge, step), place_of(loc) if loc else ""))
        step += edge.distance
    known = len(edges_of(reference))
    rounds = [edge.micro for edge in chain if edge.micro is not None]
    inside = len(rounds) == len(chain)
    ends = instance(first, micro=0 if inside else None), instance(last, step, sum(rounds) if inside else None)
    print(f"{ends[0]} comes before {ends[1]}; {len(chain)} of {known} edges say why:")
    for number, (reason, place) in enumerate(rows, 1):
        print(f"  {number}. {reason}" + (f"\n       {place}" if place else ""))
    return 0


def _asked(name: str, first: str, last: str, against: str) -> str:
    """The command line that asks for an order."""
    source = [f"--against={against}"] if against else []
    return shlex.join(["steptrace", "why", name, first, "before", last, *source])


def _reference(name: str, against: str) -> Program:
    """The program whose edges are asked for: of a schedule, what it was derived from, with the same laws."""
    from steptrace.check.reference import reference_of
    from steptrace.ir.builtin import kinds_of
    from steptrace.ir.program import ops_of
    from steptrace.lang.reference import resolve

    program = resolve(name)
    if against:
        return reference_of(program, resolve(against))
    rows = kinds_of(program)
    moved = [op.id for op in ops_of(program.body) if op.shift or op.lane != rows[op.kind].lane]
    if moved:
        raise UsageError(f"`{name}` is a schedule (it moves `{moved[0]}`): name its source too, --against=PROGRAM")
    return program


COMMAND = Command(
    name="why",
    operands="PROGRAM A before B",
    summary="Why one op comes before another: the shortest chain of edges, in words, with the lines.",
    details="Exit code 1 where nothing orders the two. Ops are named as in `steptrace dump`.",
    examples=(
        ("why grpo reward before update", "of the same step, or of the nearest later one"),
        ("why grpo update before dispatch", "an order from one step to the next"),
        ("why pipelined.st pack before stage_fwd_bwd --against='grpo{staleness=1}'", "in a schedule"),
    ),
    run=_run,
    define=_define,
    least=4,
    most=4,
)
