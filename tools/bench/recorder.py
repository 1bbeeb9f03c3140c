"""`steptrace bench recorder`: what recording a run adds to its steps."""

from __future__ import annotations

import json
from statistics import median
from typing import Any

from absl import flags

from ..command import Command
from ..table import aligned
from .load import ForeignLoad, shown


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_integer("steps", 12, "steps of a run; the first two are not counted", 4, flag_values=values)
    flags.DEFINE_integer("rounds", 5, "how often each way is run, in turn", 1, flag_values=values)
    flags.DEFINE_bool("json", False, "print one JSON object instead of the table", flag_values=values)


def _run(operands: list[str], values: flags.FlagValues) -> int:
    load = ForeignLoad()
    figures = measured(values.steps, values.rounds) | {"foreign_cpu": load.share()}
    print(json.dumps(figures) if values.json else _table(figures))
    return 0


def measured(steps: int, rounds: int) -> dict[str, Any]:
    """All figures.

    Returns:
      ``recorded_over_plain``: median step time with a recorder, over that without; ``recorded_step_ms``,
      ``plain_step_ms``; ``lane_us``: what the recorder adds to the processor time of the driving thread, a step;
      ``watch_us``: processor time of the threads that watch devices, a step; ``share``: both over the processor time
      that the process takes for a step without them; ``equal``: whether both ways train and log the same.
    """
    from .overhead_run import beyond
    from .recorder_run import recorded_and_plain

    (recorded, plain), watch_s, process_s = recorded_and_plain(steps, rounds)
    lane_s = beyond(recorded, plain, rounds)
    with_it, without = median(recorded.step_s), median(plain.step_s)
    return {
        "recorded_over_plain": with_it / without,
        "recorded_step_ms": with_it * 1e3,
        "plain_step_ms": without * 1e3,
        "lane_us": lane_s * 1e6,
        "watch_us": watch_s * 1e6,
        "share": (max(0.0, lane_s) + watch_s) / process_s,
        "equal": len(recorded.made | plain.made) == 1,
    }


def _table(figures: dict[str, Any]) -> str:
    rows = [
        ("a step, recorded", f"{figures['recorded_step_ms']:8.3f} ms"),
        ("a step, plain", f"{figures['plain_step_ms']:8.3f} ms"),
        ("recorded over plain", f"{figures['recorded_over_plain']:8.4f}"),
        ("on the driving thread", f"{figures['lane_us']:8.1f} us a step"),
        ("on the watching threads", f"{figures['watch_us']:8.1f} us a step"),
        ("both, of the processor time of a step", f"{figures['share']:8.2%}"),
    ]
    same = "both train and log the same" if figures["equal"] else "THE TWO DID NOT TRAIN THE SAME"
    return f"{aligned(rows)}\n\n{same}; other processes took {shown(figures['foreign_cpu'])} of the machine meanwhile"


COMMAND = Command(
    name="bench recorder",
    operands="",
    summary="What recording a run adds to its steps.",
    examples=(
        ("bench recorder", "the main job's step, with and without a recorder"),
        ("bench recorder --rounds 9 --json", "more rounds, for scripts"),
    ),
    run=_run,
    define=_define,
    details="""\
The main job's step (its task, model and shapes, not warmed up) is run with and without a recorder in turn, from the
same state. Step times need a quiet machine; processor times of the driving and of the watching threads do not.""",
)
