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
    from .overhead_run import Way, Workload


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_integer("steps", 30, "steps of a run; the first two are not counted", 4, flag_values=values)
    flags.DEFINE_integer("rounds", 10, "how often each way is run, in turn", 1, flag_values=values)
    flags.DEFINE_integer("rows", 16, "rows of a micro-batch, a multiple of 4", 4, flag_values=values)
    flags.DEFINE_integer("dim", 64, "features of the model, a multiple of 8", 8, flag_values=values)
    flags.DEFINE_integer("empty-steps", 300, "steps of a run of ops that do nothing", 20, flag_values=values)
    flags.DEFINE_integer("job-steps", 8, "steps of a run of the main job's step", 4, flag_values=values)
    flags.DEFINE_integer("job-rounds", 3, "how often each way of that is run; 0 leaves it out", 0, flag_values=values)
    flags.DEFINE_bool("json", False, "print one JSON object instead of the table", flag_values=values)


def _run(operands: list[str], values: flags.FlagValues) -> int:
    from .overhead_run import Workload

    work = Workload(
        steps=values.steps,
        rounds=values.rounds,
        rows=values.rows,
        dim=values.dim,
        empty_steps=values["empty-steps"].value,
        job_steps=values["job-steps"].value,
        job_rounds=values["job-rounds"].value,
    )
    load = ForeignLoad()
    figures = measured(work) | {"foreign_cpu": load.share()}
    print(json.dumps(figures) if values.json else _table(figures))
    return 0


def measured(work: Workload) -> dict[str, Any]:
    """All figures.

    Returns:
      ``plan_over_loop``: processor time that a plan takes beyond a loop on the same ops, over the wall time of that
      loop's step, plus 1; ``loop_over_loop``: the same of that loop beside itself, which says how exact that is;
      ``plan_over_parts``: the same beside a loop straight on the parts, which checks and queues nothing;
      ``plan_over_loop_wall``: of the wall times; ``plan_step_ms``, ``loop_step_ms``, ``parts_step_ms``;
      ``driving_us``: what a plan takes beyond the loop in a step whose ops do nothing, and ``driving_share``: that
      over the step of the loop; ``us_per_op`` and ``us_per_handover``, see `overhead_run.empty`; ``ops_per_step``;
      ``equal``: whether all ways train and log the same; and figures of the main job's step, ``job_`` in front, unless
      it is left out.
    """
    from .overhead_run import beyond, empty, hollow, job, ops_per_step, tiny

    plan, loop, again, bare = tiny(work)
    planned, looped = hollow(work)
    driving = beyond(planned, looped, work.rounds)
    figures: dict[str, Any] = {
        **_beside(plan, loop, driving, work.rounds),
        "loop_over_loop": 1.0 + beyond(again, loop, work.rounds) / median(loop.step_s),
        "plan_over_parts": 1.0 + beyond(plan, bare, work.rounds) / median(bare.step_s),
        "parts_step_ms": median(bare.step_s) * 1e3,
        "equal": len(plan.made | loop.made | again.made | bare.made) == 1,
        "driving_us": driving * 1e6,
        "ops_per_step": ops_per_step(work.micro_batches),
        **empty(work),
    }
    if work.job_rounds:
        plan, loop = job(work)
        beside = _beside(plan, loop, driving, work.job_rounds)
        figures |= {f"job_{name}": value for name, value in beside.items()}
        figures["equal"] &= len(plan.made | loop.made) == 1
    return figures


def _beside(plan: Way, loop: Way, driving: float, rounds: int) -> dict[str, float]:
    """A plan beside the loop on its ops."""
    from .overhead_run import beyond

    by_plan, by_hand = median(plan.step_s), median(loop.step_s)
    return {
        "plan_over_loop": 1.0 + beyond(plan, loop, rounds) / by_hand,
        "plan_over_loop_wall": by_plan / by_hand,
        "plan_step_ms": by_plan * 1e3,
        "loop_step_ms": by_hand * 1e3,
        "driving_share": driving / by_hand,
    }


def _table(figures: dict[str, Any]) -> str:
    rows: list[tuple[str, ...]] = [
        ("a step by plan", f"{figures['plan_step_ms']:8.3f} ms"),
        ("by a loop on its ops", f"{figures['loop_step_ms']:8.3f} ms"),
        ("by a loop on the parts", f"{figures['parts_step_ms']:8.3f} ms"),
        ("plan over loop on its ops", f"{figures['plan_over_loop']:8.4f}"),
        ("that loop over itself", f"{figures['loop_over_loop']:8.4f}"),
        ("plan over loop on the parts", f"{figures['plan_over_parts']:8.4f}"),
        ("an op in one lane", f"{figures['us_per_op']:8.2f} us"),
        ("a hand-over between lanes", f"{figures['us_per_handover']:8.2f} us"),
        (f"driving {figures['ops_per_step']} ops, a step", f"{figures['driving_us']:8.2f} us"),
        ("share of the step", f"{figures['driving_share']:8.2%}"),
    ]
    if "job_loop_step_ms" in figures:
        rows += [
            ("a step of the main job", f"{figures['job_loop_step_ms']:8.3f} ms"),
            ("plan over loop on its ops", f"{figures['job_plan_over_loop']:8.4f}"),
            ("share of driving", f"{figures['job_driving_share']:8.3%}"),
        ]
    same = "all train and log the same" if figures["equal"] else "THE WAYS DID NOT TRAIN AND LOG THE SAME"
    return f"{aligned(rows)}\n\n{same}; other processes took {shown(figures['foreign_cpu'])} of the machine meanwhile"


COMMAND = Command(
    name="bench overhead",
    operands="",
    summary="What driving a plan costs, beside the same loop written by hand.",
    examples=(
        ("bench overhead", "a tiny model and the main job's step; by plan and by hand, and microseconds an op"),
        ("bench overhead --job-rounds 0 --json", "the tiny model alone, for scripts"),
    ),
    run=_run,
    define=_define,
    details="""\
All ways train the same model from the same state with the same parts, run after run in turn, and note the trainer's
calls, the trained groups and the records of the log, which must be equal. The loop on the ops calls what each op does
in the order of the step, and nothing else: what a plan takes beyond it is the driving. That is little beside what a
step's own time varies by, so it is also measured, in microseconds, on the same program with ops that return at once.
The loop on the parts leaves out what a run does besides: checks of what parts return, the queue, the weights by step.
Processor time of the driving thread is compared, which other processes disturb least, over the wall time of a step:
the median over the rounds of what the medians of a round differ by. What an op and a hand-over cost is measured on a
program whose ops do nothing, on one lane and in turn on two; what the functions themselves take is taken off.""",
)
