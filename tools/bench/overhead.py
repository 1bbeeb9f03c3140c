"""`steptrace bench overhead`: what driving a plan costs, beside the same loop written by hand."""

from __future__ import annotations

import json
from statistics import median
from typing import TYPE_CHECKING, Any

from absl import flags

from ..command import Command
from ..table import aligned
from .load import ForeignLoad, shown

if TYPE_CHECKING:
    from .overhead_run import Workload


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_integer("steps", 10, "steps of a run; the first two are not counted", 4, flag_values=values)
    flags.DEFINE_integer("rounds", 15, "how often each way is run, in turn", 1, flag_values=values)
    flags.DEFINE_integer("rows", 16, "rows of a micro-batch, a multiple of 4", 4, flag_values=values)
    flags.DEFINE_integer("dim", 64, "features of the model, a multiple of 8", 8, flag_values=values)
    flags.DEFINE_integer("empty-steps", 300, "steps of a run of ops that do nothing", 20, flag_values=values)
    flags.DEFINE_bool("json", False, "print one JSON object instead of the table", flag_values=values)


def _run(operands: list[str], values: flags.FlagValues) -> int:
    from .overhead_run import Workload

    work = Workload(
        steps=values.steps,
        rounds=values.rounds,
        rows=values.rows,
        dim=values.dim,
        empty_steps=values["empty-steps"].value,
    )
    load = ForeignLoad()
    figures = measured(work) | {"foreign_cpu": load.share()}
    print(json.dumps(figures) if values.json else _table(figures))
    return 0


def measured(work: Workload) -> dict[str, Any]:
    """All figures.

    Returns:
      ``plan_over_loop``: median step time by plan, over that by hand; ``plan_step_ms``, ``loop_step_ms``;
      ``us_per_op`` and ``us_per_handover``, see `overhead_run.empty`; ``ops_per_step``; ``driving_share``: what the
      ops of a step take by these figures, over the step by hand; ``equal``: whether both ways train the same.
    """
    from .overhead_run import driven, empty

    plan, loop, ops = driven(work)
    by_plan, by_hand = median(plan.step_s), median(loop.step_s)
    costs = empty(work)
    return {
        "plan_over_loop": by_plan / by_hand,
        "plan_step_ms": by_plan * 1e3,
        "loop_step_ms": by_hand * 1e3,
        "ops_per_step": ops,
        "driving_share": ops * costs["us_per_op"] * 1e-6 / by_hand,
        "equal": len(plan.digests | loop.digests) == 1,
        **costs,
    }


def _table(figures: dict[str, Any]) -> str:
    rows: list[tuple[str, ...]] = [
        ("a step by plan", f"{figures['plan_step_ms']:8.3f} ms"),
        ("a step by hand", f"{figures['loop_step_ms']:8.3f} ms"),
        ("plan over loop", f"{figures['plan_over_loop']:8.4f}"),
        ("an op in one lane", f"{figures['us_per_op']:8.2f} us"),
        ("a hand-over between lanes", f"{figures['us_per_handover']:8.2f} us"),
        (f"{figures['ops_per_step']} ops over a step", f"{figures['driving_share']:8.2%}"),
    ]
    same = "both train the same" if figures["equal"] else "THE TWO DID NOT TRAIN THE SAME"
    return f"{aligned(rows)}\n\n{same}; other processes took {shown(figures['foreign_cpu'])} of the machine meanwhile"


COMMAND = Command(
    name="bench overhead",
    operands="",
    summary="What driving a plan costs, beside the same loop written by hand.",
    examples=(
        ("bench overhead", "a tiny model; seconds a step by plan and by hand, and microseconds an op"),
        ("bench overhead --rounds 9 --json", "more rounds, for scripts"),
    ),
    run=_run,
    define=_define,
    details="""\
Both ways train the same model from the same state with the same parts, run after run in turn, and note the trainer's
calls; medians of single steps are compared. What an op and a hand-over cost is measured on a program whose ops do
nothing, on one lane and in turn on two; what the functions themselves take is taken off.""",
)
