"""`steptrace timeline PROGRAM --costs FILE`: a run, planned or measured, as a trace, a page, or text."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

from absl import flags

from ..command import Command, UsageError

if TYPE_CHECKING:
    from steptrace.timeline import Recording


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_string("costs", "", "a TOML file: how long each op takes", flag_values=values)
    flags.DEFINE_string("measured", "", "a real run, as `run --events` wrote it", flag_values=values)
    flags.DEFINE_string("pipeline", "", "the schedule to run", short_name="p", flag_values=values)
    flags.DEFINE_integer("micro-batches", None, "of a step (default: the cost file's)", 1, 10_000, flag_values=values)
    flags.DEFINE_integer("steps", 5, "how many steps to plan", 1, flag_values=values)
    flags.DEFINE_string("html", "", "write a page to this file; it needs no network", flag_values=values)
    flags.DEFINE_bool("ascii", False, "print a few steps, drawn in text", flag_values=values)
    flags.DEFINE_integer("width", None, "of the text, in columns (default: the terminal's)", 40, flag_values=values)
    flags.DEFINE_string("output", "", "write the trace to this file", short_name="o", flag_values=values)


def _run(operands: list[str], values: flags.FlagValues) -> int:
    from steptrace.timeline import page_of, read_events, text_of, trace_of

    from ..output import check_writable, write_text

    if not values.costs and not values.measured:
        raise UsageError(f"`timeline` needs costs, or a measured run: timeline {operands[0]} --costs=costs.toml")
    for path in (values.html, values.output):
        check_writable(path)
    recordings = [_planned(operands[0], values)] if values.costs else []
    recordings += [read_events(values.measured)] if values.measured else []
    if values.html:
        write_text(page_of(recordings), values.html)
    if values.ascii:
        width = values.width or min(200, shutil.get_terminal_size((120, 24)).columns)
        print("\n".join(text_of(recording, width=width) for recording in recordings), end="")
    if values.output or not (values.html or values.ascii):
        write_text(json.dumps(trace_of(recordings)) + "\n", values.output)
    return 0


def _planned(name: str, values: flags.FlagValues) -> Recording:
    """The run in virtual time."""
    from steptrace.cost import read_costs
    from steptrace.lang.reference import resolve
    from steptrace.lower import lower
    from steptrace.passes import run_pipeline
    from steptrace.simulate import simulate
    from steptrace.timeline import recording_of

    from ..plan_sweep import check_micro_batches

    costs = read_costs(values.costs)
    micro_batches = values["micro-batches"].value or costs.micro_batches
    if micro_batches is None:
        raise UsageError("say how many micro-batches a step has: --micro-batches=8, or [cell] in the cost file")
    micro_batches = check_micro_batches(str(micro_batches), "[cell] of the cost file")
    source = resolve(name)
    schedule = run_pipeline(source, values.pipeline).schedule
    plan = lower(schedule.program, source=schedule.source)
    run = simulate(plan, costs.covering(source), micro_batches=micro_batches, steps=values.steps)
    return recording_of(run, plan, pipeline=values.pipeline, note=f"costs of {values.costs}")


COMMAND = Command(
    name="timeline",
    operands="PROGRAM",
    summary="A run, planned or measured, as a trace, a page, or text: lanes, devices, waits and idle gaps.",
    details="""\
The trace is for Perfetto (ui.perfetto.dev) and chrome://tracing. The page needs nothing else, and no network: lanes as
rows, steps in colour, waits as arrows, idle gaps with their lengths. With --costs and --measured both stand below one
another on one axis of time. `steptrace run --events=FILE` records a run.""",
    examples=(
        ("timeline 'grpo{staleness=1}' -p pipelined-boundary --costs=costs.toml --html=page.html", "a page"),
        (
            "timeline 'grpo{staleness=1}' --costs=costs.toml --measured=events.json --html=page.html",
            "and a real run",
        ),
        ("timeline 'grpo{staleness=1}' -p pipelined-boundary --costs=costs.toml -o trace.json", "for Perfetto"),
        ("timeline grpo --costs=costs.toml --micro-batches=8 --ascii", "in the terminal"),
        ("timeline grpo --costs=costs.toml --steps=3 --micro-batches=8", "the trace, to standard output"),
    ),
    run=_run,
    define=_define,
    least=1,
    most=1,
)
