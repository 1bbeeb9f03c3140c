"""`steptrace plan PROGRAM --costs FILE`: what a schedule will do, before it runs."""

from __future__ import annotations

import json
import re
import sys
from itertools import product
from typing import TYPE_CHECKING, Any

from absl import flags

from ..command import Command, UsageError
from ..table import aligned

if TYPE_CHECKING:
    from steptrace.cost import Costs, Judged
    from steptrace.ir import Program


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_string("costs", "", "a TOML file: how long each op takes", flag_values=values)
    flags.DEFINE_string("pipeline", "", "the schedule to judge", short_name="p", flag_values=values)
    flags.DEFINE_string(
        "micro-batches",
        "",
        "of a step; several, as 4,8,6, where they differ (default: the file's)",
        flag_values=values,
    )
    flags.DEFINE_string("sweep", "", "a table over settings: staleness=0..4 micro_batches=4,8,16", flag_values=values)
    flags.DEFINE_bool("auto", False, "search for the fastest schedule instead", flag_values=values)
    flags.DEFINE_string("memory", "", "with --auto: what a schedule may hold, as 80 GB", flag_values=values)
    flags.DEFINE_bool("json", False, "print one JSON object", flag_values=values)


def _run(operands: list[str], values: flags.FlagValues) -> int:
    from steptrace.cost import read_costs

    if not values.costs:
        raise UsageError(f"`plan` needs costs: plan {operands[0]} --costs=costs.toml")
    if values.memory and not values.auto:
        raise UsageError("`--memory` is for a search: give `--auto` too")
    costs = read_costs(values.costs)
    settings = _settings(" ".join([values.sweep, *operands[1:]]))
    counts = [] if "micro_batches" in settings else _counts(values["micro-batches"].value, costs)
    if settings:
        rows = sweep(operands[0], values.pipeline, costs, counts, settings, auto=values.auto)
        print(json.dumps({"sweep": rows}) if values.json else _table(rows))
        return 0
    source = _resolved(operands[0])
    found, pipeline, stopped = _found(source, values.pipeline, costs, counts, auto=values.auto, memory=values.memory)
    facts = facts_of(found, costs)
    if values.auto:
        facts |= {"pipeline": pipeline, "stopped": stopped}
    print(json.dumps(facts) if values.json else report(found, facts))
    return 0


def _found(
    source: Program, pipeline: str, costs: Costs, counts: list[int], *, auto: bool, memory: str = ""
) -> tuple[Judged, str, str]:
    """The schedule that was asked for, judged; with its pipeline, and why a search stopped."""
    from steptrace.cost import SIZES, autoschedule, bound_of, bytes_of, judged, quantity
    from steptrace.passes import run_pipeline

    durations = costs.covering(source)
    if auto:
        if pipeline or min(counts) != max(counts):
            raise UsageError("`--auto` finds the pipeline by itself, for one number of micro-batches")
        try:
            room = quantity(memory, "size") if memory else None
        except ValueError as error:
            raise UsageError(f"`--memory`: {error}") from error
        unsized = [name for name in SIZES if name not in costs.sizes]
        if room is not None and unsized:
            raise UsageError(f"`--memory` needs the sizes of what is held; [sizes] has no {', '.join(unsized)}")
        best = autoschedule(
            source,
            durations,
            micro_batches=counts[0],
            memory=room,
            bytes_of=lambda one: bytes_of(one.memory(costs)),
        )
        return best.judged, best.pipeline, best.why
    result = run_pipeline(source, pipeline) if pipeline else run_pipeline(source, "")
    for remark in result.remarks:
        if remark.kind == "missed":
            print(f"note: {remark.pass_name} declined: {remark.message}", file=sys.stderr)
    bound = bound_of(source, durations, micro_batches=min(counts))
    return judged(result.schedule, durations, micro_batches=counts, bound=bound), pipeline, ""


def facts_of(found: Judged, costs: Costs) -> dict[str, Any]:
    """What is said of a schedule, for scripts; times in seconds."""
    from steptrace.cost import bottleneck, bytes_of, critical, slack

    period, bound = found.period, found.bound
    assert bound is not None, "a plan is judged with its bound"
    held = found.memory(costs)
    return {
        "period_s": period.seconds,
        "least_period_s": period.least,
        "exact": not period.is_bound,
        "cadence": period.cadence,
        "micro_batches": period.micro_batches,
        "bottleneck": bottleneck(period),
        "critical_cycle": [
            {"op": part.op, "where": part.where, "count": part.count, "seconds": part.seconds, "line": part.line}
            for part in critical(period)
        ],
        "idle": {"boundary_s": found.boundary_idle_s, "step_s": found.idle_s, "busy_fraction": found.busy_fraction},
        "bound_s": bound.seconds,
        "bound_why": bound.why,
        "over_bound": found.over_bound,
        "slack_s": slack(period),
        "memory": {
            "bytes": None if any(one.bytes is None for one in held) else bytes_of(held),
            "held": {one.what: {"most": one.most, "bytes": one.bytes} for one in held},
        },
        "staleness": period.plan.program.contract.staleness,
    }


def report(found: Judged, facts: dict[str, Any]) -> str:
    """What is said of a schedule, to be read."""
    from steptrace.cost import critical, seconds_in_words

    said, period = seconds_in_words, found.period
    length = said(period.seconds)
    if period.is_bound:
        length = f"between {said(period.least)} and {length} on average: the numbers of micro-batches differ"
    head = [("period", length), ("bottleneck", facts["bottleneck"])]
    over = "" if facts["over_bound"] is None else f"; this schedule takes {facts['over_bound']:.4f} times as long"
    head.append(("bound", f"{said(facts['bound_s'])}: {facts['bound_why']}{over}"))
    idle = facts["idle"]
    head.append(("trainer idle", f"{said(idle['boundary_s'])} at the boundary, {said(idle['step_s'])} a step in all"))
    held = (f"{one['most']} x {what}{_sized(one['bytes'])}" for what, one in facts["memory"]["held"].items())
    head.append(("memory", ", ".join(held) or "nothing is held"))
    if "pipeline" in facts:
        head += [("pipeline", facts["pipeline"] or "(the program as written)"), ("stopped", facts["stopped"])]
    lines = dict.fromkeys((part.op, part.line) for part in critical(period) if part.line)
    room = [(op, said(seconds)) for op, seconds in sorted(facts["slack_s"].items(), key=lambda one: one[1])]
    parts = [aligned(head), "on the critical circle:\n" + aligned([*lines], indent=2)] if lines else [aligned(head)]
    return "\n\n".join([*parts, "slack, before the period grows:\n" + aligned(room, indent=2)] if room else parts)


def sweep(
    name: str, pipeline: str, costs: Costs, counts: list[int], settings: dict[str, list[str]], *, auto: bool = False
) -> list[dict[str, Any]]:
    """What is said of a schedule under each combination of settings; what is refused has the reason instead."""
    from steptrace.diag.base import SteptraceError

    rows = []
    for chosen in product(*settings.values()):
        row: dict[str, Any] = dict(zip(settings, chosen, strict=True))
        mine = [int(row["micro_batches"])] if "micro_batches" in row else counts
        try:
            source = _resolved(_with(name, {key: value for key, value in row.items() if key != "micro_batches"}))
            found, used, _ = _found(source, pipeline, costs, mine, auto=auto)
            facts = facts_of(found, costs)
            row |= {key: facts[key] for key in ("period_s", "bound_s", "over_bound", "staleness")}
            row |= {"idle_s": facts["idle"]["step_s"], "memory_bytes": facts["memory"]["bytes"], "pipeline": used}
        except SteptraceError as error:
            row["refused"] = f"{error.code}: {error.message}"
        rows.append(row)
    return rows


def _table(rows: list[dict[str, Any]]) -> str:
    from steptrace.cost import seconds_in_words

    def shown(key: str, value: object) -> str:
        if isinstance(value, float) and key.endswith("_s"):
            return seconds_in_words(value)
        return f"{value:.4g}" if isinstance(value, float) else str(value)

    keys = list(dict.fromkeys(key for row in rows for key in row))
    longest = max((row["period_s"] for row in rows if "period_s" in row), default=0.0)
    bars = ["#" * round(40 * row.get("period_s", 0.0) / longest) if longest else "" for row in rows]
    cells = [[*(shown(key, row.get(key, "")) for key in keys), bar] for row, bar in zip(rows, bars, strict=True)]
    return aligned([[*keys, "period"], *cells])


def _sized(size: float | None) -> str:
    return " (of no known size)" if size is None else f" ({size / 1e9:.4g} GB)"


def _counts(text: str, costs: Costs) -> list[int]:
    """How many micro-batches a step has: as asked for, else as the cost file says."""
    if not text:
        if costs.micro_batches is None:
            raise UsageError("say how many micro-batches a step has: --micro-batches=8, or [cell] in the cost file")
        return [costs.micro_batches]
    if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", text):
        raise UsageError(f"--micro-batches={text}: numbers from 1 on, as 8 or 4,8,6")
    return [int(number) for number in text.split(",")]


def _settings(text: str) -> dict[str, list[str]]:
    """The settings of a sweep: ``staleness=0..4 micro_batches=4,8,16``."""
    found: dict[str, list[str]] = {}
    for word in text.split():
        match = re.fullmatch(r"([a-z_]+)=(?:(\d+)\.\.(\d+)|([\w.]+(?:,[\w.]+)*))", word)
        if match is None:
            raise UsageError(f"--sweep: `{word}` is no setting; one is staleness=0..4 or micro_batches=4,8,16")
        first, last, several = match[2], match[3], match[4]
        found[match[1]] = several.split(",") if several else [str(n) for n in range(int(first), int(last) + 1)]
        if match[1] == "micro_batches" and not all(re.fullmatch(r"[1-9]\d*", one) for one in found[match[1]]):
            raise UsageError(f"--sweep: `{word}`: numbers of micro-batches, from 1 on")
    return found


def _with(name: str, more: dict[str, str]) -> str:
    """A program's name with more parameters."""
    if not more:
        return name
    base, _, inside = name.partition("{")
    own = dict(pair.split("=", 1) for pair in inside.rstrip("}").split(",") if "=" in pair)
    return f"{base}{{{','.join(f'{key}={value}' for key, value in {**own, **more}.items())}}}"


def _resolved(name: str) -> Program:
    from steptrace.lang.reference import resolve

    return resolve(name)


COMMAND = Command(
    name="plan",
    operands="PROGRAM",
    summary="What a schedule will do before it runs: its period, what that is due to, idle time, bound and memory.",
    details="""\
The cost file is TOML: a table [ops.NAME] for each op or kind with `issue` (on the lane that calls it), `work` (on its
device), and `ship` or `bytes` over a link, numbers with units; [links.NAME] with `bandwidth`; [sizes]; [cell]. An op
without a cost is refused, never taken for free. The period is exact for fixed durations and one number of
micro-batches; for several numbers there are bounds, and they say so. What runs less often than every 60 steps counts as
never.""",
    examples=(
        ("plan 'grpo{staleness=1}' -p pipelined-boundary --costs=costs.toml", "one schedule"),
        ("plan 'grpo{staleness=1}' --costs=costs.toml --auto --memory='80 GB'", "the fastest that is found"),
        ("plan grpo --costs=costs.toml --sweep='staleness=0..2 micro_batches=4,8' --auto", "a table, to choose from"),
        ("plan grpo --costs=costs.toml --micro-batches=8 --json", "for scripts"),
    ),
    run=_run,
    define=_define,
    least=1,
    most=9,
)
