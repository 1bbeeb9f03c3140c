"""`steptrace plan PROGRAM --costs FILE`: what a schedule will do, before it runs."""

from __future__ import annotations

import json
import re
import sys
from math import prod
from typing import TYPE_CHECKING

from absl import flags

from ..command import Command, UsageError

if TYPE_CHECKING:
    from steptrace.cost import Costs, Judged
    from steptrace.ir import Program
    from steptrace.motion import Schedule


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
    flags.DEFINE_string("svg", "", "with --sweep: write the plot to this file", flag_values=values)
    flags.DEFINE_bool("auto", False, "search for the fastest schedule instead", flag_values=values)
    flags.DEFINE_float(
        "jitter", 0.0, "durations are spread by this share, for quantiles of step times", 0, flag_values=values
    )
    flags.DEFINE_string(
        "stragglers", "", "ops that now and then take longer: fwd_bwd=0.02x5,log=0.1x3", flag_values=values
    )
    flags.DEFINE_integer("runs", 20, "runs in virtual time for the quantiles", 1, flag_values=values)
    flags.DEFINE_integer("seed", 0, "of the draws, and of the order of a search", 0, flag_values=values)
    flags.DEFINE_string("memory", "", "what a schedule may hold, as '80 GB'", flag_values=values)
    flags.DEFINE_bool("json", False, "print one JSON object", flag_values=values)


def _run(operands: list[str], values: flags.FlagValues) -> int:
    from steptrace.cost import read_costs

    from ..output import check_writable, told_if_slow
    from ..plan_facts import facts_of, report
    from ..plan_spread import spread_facts, spreads_of
    from ..plan_sweep import settings_of

    if not values.costs:
        raise UsageError(f"`plan` needs costs: plan {operands[0]} --costs=costs.toml")
    check_writable(values.svg)
    costs = read_costs(values.costs)
    settings = settings_of(" ".join([values.sweep, *operands[1:]]))
    if values.svg and not settings:
        raise UsageError("`--svg` is the plot of a sweep: --sweep staleness=0..4 --svg=plot.svg")
    judge = _Judge(values, costs, [] if "micro_batches" in settings else _counts(values["micro-batches"].value, costs))
    if settings:
        return _swept(operands[0], settings, judge, values)
    with told_if_slow(f"schedules of {operands[0]} are judged"):
        found, pipeline = judge(operands[0])
        facts = facts_of(found, costs)
    if values.auto:
        facts |= {"pipeline": pipeline, "stopped": judge.stopped}
    spreads = spreads_of(values.jitter, values.stragglers)
    if spreads or costs.spreads or costs.rollout:
        facts["spread"] = spread_facts(found, costs, spreads, runs=values.runs, seed=values.seed)
    print(json.dumps(facts) if values.json else report(found, facts))
    return 0


def _swept(name: str, settings: dict[str, list[str]], judge: _Judge, values: flags.FlagValues) -> int:
    from ..output import told_if_slow, write_text
    from ..plan_sweep import sweep, sweep_plot, sweep_svg, sweep_table

    def begun(setting: str) -> None:
        if values.auto:  # a search takes a while for each
            print(setting, file=sys.stderr, flush=True)

    count = prod(map(len, settings.values()))
    with told_if_slow(f"{count} settings of {name} are judged, one after the other"):
        rows = sweep(name, settings, judge.costs, judge, begun=begun)
    if values.svg:
        write_text(
            sweep_svg(rows, settings, f"{name} {values.pipeline or ('--auto' if values.auto else '')}"), values.svg
        )
    print(json.dumps({"sweep": rows}) if values.json else f"{sweep_table(rows)}\n\n{sweep_plot(rows, settings)}")
    return 0


class _Judge:
    """Judges programs by what the command was given.

    Attributes:
      costs: the costs.
      stopped: why the last search stopped, "" where none was asked for.
    """

    def __init__(self, values: flags.FlagValues, costs: Costs, counts: list[int]) -> None:
        self.costs, self.stopped = costs, ""
        self._values, self._counts = values, counts

    def __call__(self, name: str, counts: list[int] | None = None) -> tuple[Judged, str]:
        """The schedule that was asked for, judged, and its pipeline."""
        from steptrace.cost import bound_of, check_memory, judged
        from steptrace.lang.reference import resolve

        counts = counts or self._counts
        source = resolve(name)
        durations = self.costs.covering(source)
        if self._values.auto:
            return self._searched(source, counts)
        result = self._passed(source, counts)
        bound = bound_of(source, durations, micro_batches=min(counts))
        found = judged(result, durations, micro_batches=counts, bound=bound)
        if self._values.memory:
            self.costs.require_sizes()
            check_memory(found.memory(self.costs), self._memory(), source.loc)
        return found, str(self._values.pipeline)

    def _passed(self, source: Program, counts: list[int]) -> Schedule:
        from steptrace.passes import run_pipeline

        from ..with_costs import with_costs

        pipeline = with_costs(self._values.pipeline, self._values.costs, micro_batches=max(counts))
        result = run_pipeline(source, pipeline)
        for remark in result.remarks:
            if remark.kind == "missed":
                print(f"note: {remark.pass_name} declined: {remark.message}", file=sys.stderr)
            elif remark.kind == "found":
                print(remark, file=sys.stderr)
        return result.schedule

    def _searched(self, source: Program, counts: list[int]) -> tuple[Judged, str]:
        from steptrace.motion import Schedule
        from steptrace.passes.autoschedule import Autoschedule

        if self._values.pipeline or min(counts) != max(counts):
            raise UsageError("`--auto` finds the pipeline by itself, for one number of micro-batches")
        if self._values.memory:
            self._memory()
        search = Autoschedule(memory=self._values.memory, seed=self._values.seed, micro_batches=counts[0])
        found = search.search(Schedule.of(source), self.costs)
        self.stopped = found.why
        return found.judged, found.pipeline

    def _memory(self) -> float:
        from steptrace.cost import quantity

        try:
            return quantity(self._values.memory, "size")
        except ValueError as error:
            raise UsageError(f"`--memory`: {error}") from error


def _counts(text: str, costs: Costs) -> list[int]:
    """How many micro-batches a step has: as asked for, else as the cost file says."""
    from ..plan_sweep import check_micro_batches

    if not text:
        if costs.micro_batches is None:
            raise UsageError("say how many micro-batches a step has: --micro-batches=8, or [cell] in the cost file")
        return [check_micro_batches(str(costs.micro_batches), "[cell] of the cost file")]
    if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", text):
        raise UsageError(f"--micro-batches={text}: numbers from 1 on, as 8 or 4,8,6")
    return [check_micro_batches(number, f"--micro-batches={text}") for number in text.split(",")]


COMMAND = Command(
    name="plan",
    operands="PROGRAM",
    summary="What a schedule will do before it runs: its period, what that is due to, idle time, bound and memory.",
    details="""\
The cost file is TOML: a table [ops.NAME] for each op or kind with `issue` (on the lane that calls it), `work` (on its
device), and `ship` or `bytes` over a link, numbers with units; [links.NAME] with `bandwidth`; [sizes]; [cell]. An op
without a cost is refused, never taken for free. The period is exact for fixed durations and one number of
micro-batches; for several numbers there are bounds, and they say so. What runs less often than every 60 steps counts as
never. With --memory a schedule that may hold more is refused, and a search keeps within it.

An op of the file may have `deviation` (a share of what it takes), `straggler_chance` and `straggler_times`; [rollout]
has `requests` of a step and `capacity`, how many are served at a time, and the work of `dispatch` is then that of one
request. With any of these, or --jitter or --stragglers, runs in virtual time give quantiles of step times.""",
    examples=(
        ("plan 'grpo{staleness=1}' -p pipelined-boundary --costs=costs.toml", "one schedule"),
        ("plan 'grpo{staleness=1}' --costs=costs.toml --auto --memory='80 GB'", "the fastest that is found"),
        (
            "plan grpo --costs=costs.toml --sweep staleness=0..2 micro_batches=4,8 --auto",
            "a table and a plot, to choose",
        ),
        ("plan grpo --costs=costs.toml --sweep staleness=0..2 --auto --svg=plot.svg", "the plot as a file too"),
        ("plan grpo --costs=costs.toml --jitter=0.2 --stragglers=fwd_bwd=0.02x5", "with quantiles of step times"),
        ("plan grpo --costs=costs.toml --micro-batches=8 --json", "for scripts"),
    ),
    run=_run,
    define=_define,
    least=1,
    most=9,
)
