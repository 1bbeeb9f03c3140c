"""What is said of a schedule that was judged by its costs: for scripts, and to be read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .table import aligned

if TYPE_CHECKING:
    from steptrace.cost import Costs, Judged


def facts_of(found: Judged, costs: Costs) -> dict[str, Any]:
    """What is said of a schedule, for scripts; times in seconds.

    `period` and `bound` are seconds too, under the names by which they are spoken of.
    """
    from steptrace.cost import bottleneck, bytes_of, critical, instance_slack, slack

    period, bound = found.period, found.bound
    assert bound is not None, "a plan is judged with its bound"
    held, single = found.memory(costs), instance_slack(period)
    return {
        "period": period.seconds,
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
        "bound": bound.seconds,
        "bound_s": bound.seconds,
        "bound_why": bound.why,
        "over_bound": found.over_bound,
        "slack_s": slack(period, single),
        "instance_slack_s": single,
        "memory": {
            "bytes": None if any(one.bytes is None for one in held) else bytes_of(held),
            "held": {one.what: {"most": one.most, "bytes": one.bytes, "where": one.where} for one in held},
            "peak_bytes": {
                where: max(size for _, size in levels) for where, levels in found.memory_over_time(costs).items()
            },
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
    if "spread" in facts:
        head.append(("step times", spread_in_words(facts["spread"])))
    lines = dict.fromkeys((part.op, part.line) for part in critical(period) if part.line)
    room = [(op, said(seconds)) for op, seconds in sorted(facts["slack_s"].items(), key=lambda one: one[1])]
    parts = [aligned(head), "on the critical circle:\n" + aligned([*lines], indent=2)] if lines else [aligned(head)]
    return "\n\n".join(
        [*parts, "slack of each op, all its instances together, before the period grows:\n" + aligned(room, indent=2)]
        if room
        else parts
    )


def spread_in_words(spread: dict[str, Any]) -> str:
    """How step times are spread, in words."""
    from steptrace.cost import seconds_in_words as said

    quantiles = ", ".join(f"{name} {said(seconds)}" for name, seconds in spread["step_s"].items())
    return f"{quantiles} ({spread['runs']} runs of {spread['steps']} steps; {spread['stretch']:.3f} x the period)"


def _sized(size: float | None) -> str:
    return " (of no known size)" if size is None else f" ({size / 1e9:.4g} GB)"
