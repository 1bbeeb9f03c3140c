"""`steptrace timeline PROGRAM --costs FILE`: a run in virtual time as a trace, for Perfetto and chrome://tracing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from absl import flags

from ..command import Command, UsageError

if TYPE_CHECKING:
    from steptrace.ir import Program
    from steptrace.simulate import Run


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_string("costs", "", "a TOML file: how long each op takes", flag_values=values)
    flags.DEFINE_string("pipeline", "", "the schedule to run", short_name="p", flag_values=values)
    flags.DEFINE_integer("micro-batches", None, "of a step (default: the cost file's)", 1, flag_values=values)
    flags.DEFINE_integer("steps", 5, "how many steps to run", 1, flag_values=values)
    flags.DEFINE_string("output", "", "write to this file, not to standard output", short_name="o", flag_values=values)


def _run(operands: list[str], values: flags.FlagValues) -> int:
    from steptrace.cost import read_costs
    from steptrace.lang.reference import resolve
    from steptrace.lower import lower
    from steptrace.passes import run_pipeline
    from steptrace.simulate import simulate

    from ..output import write_text

    if not values.costs:
        raise UsageError(f"`timeline` needs costs: timeline {operands[0]} --costs=costs.toml")
    costs = read_costs(values.costs)
    micro_batches = values["micro-batches"].value or costs.micro_batches
    if micro_batches is None:
        raise UsageError("say how many micro-batches a step has: --micro-batches=8, or [cell] in the cost file")
    source = resolve(operands[0])
    schedule = run_pipeline(source, values.pipeline).schedule
    plan = lower(schedule.program, source=schedule.source)
    run = simulate(plan, costs.covering(source), micro_batches=micro_batches, steps=values.steps)
    write_text(json.dumps(trace_of(run, schedule.program)) + "\n", values.output)
    return 0


def trace_of(run: Run, program: Program) -> dict[str, Any]:
    """A run in the trace event format: a row for each lane and each device, times in microseconds."""
    from steptrace.diag.base import place_of

    lines = {op.id: place_of(op.loc) for op in program.ops() if op.loc is not None}
    rows = [*dict.fromkeys(event.lane for event in run.events), *dict.fromkeys(span.device for span in run.spans)]
    busy = [
        (event.lane, str(event), event.op, event.step, event.start, event.end, event.held_by)
        for event in run.events
        if event.end > event.start
    ]
    busy += [
        (span.device, f"{span.op}@{span.step}", span.op, span.step, span.start, span.end, "")
        for span in run.spans
        if span.end > span.start
    ]
    names = [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": at, "args": {"name": row}} for at, row in enumerate(rows)
    ]
    spans = [
        {
            "ph": "X",
            "name": name,
            "cat": f"step {step}",
            "pid": 1,
            "tid": rows.index(row),
            "ts": start * 1e6,
            "dur": (end - start) * 1e6,
            "args": {"op": op, "step": step, "line": lines.get(op, ""), "waited_for": held},
        }
        for row, name, op, step, start, end, held in busy
    ]
    return {"traceEvents": [*names, *spans], "displayTimeUnit": "ms"}


COMMAND = Command(
    name="timeline",
    operands="PROGRAM",
    summary="A run in virtual time as a trace that Perfetto and chrome://tracing open.",
    examples=(
        ("timeline 'grpo{staleness=1}' -p pipelined-boundary --costs=costs.toml -o trace.json", "to be opened there"),
        ("timeline grpo --costs=costs.toml --steps=3 --micro-batches=8", "to standard output"),
    ),
    run=_run,
    define=_define,
    least=1,
    most=1,
)
