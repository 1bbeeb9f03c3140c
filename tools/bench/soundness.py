"""`steptrace bench soundness`: random schedules, the checker's answer against that of an independent judge."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from typing import TYPE_CHECKING, Any

from absl import flags

from ..command import Command
from ..table import aligned

if TYPE_CHECKING:
    from steptrace.testing.soundness import Stratum, Tally

_BLOCK = 12
"""Programs that a worker takes at a time."""


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_integer("seed", 0, "of every draw", 0, flag_values=values)
    flags.DEFINE_float("seconds", 20.0, "how long to go on, when no number of pairs is given", 0.0, flag_values=values)
    flags.DEFINE_integer(
        "pairs", None, "how many pairs to look at; the same seed gives the same counts", 1, flag_values=values
    )
    flags.DEFINE_integer("jobs", os.cpu_count() or 1, "processes to spread the work over", 1, flag_values=values)
    flags.DEFINE_bool("json", False, "end with one JSON object", flag_values=values)


def _run(operands: list[str], values: flags.FlagValues) -> int:
    begin = time.monotonic()
    total = measure(values.seed, pairs=values.pairs, seconds=values.seconds, jobs=values.jobs)
    seconds = time.monotonic() - begin
    if values.json:
        print(json.dumps(figures(total, values.seed, seconds)))
    else:
        print(report(total, seconds))
    return 1 if total.unsound else 0


def measure(seed: int, *, pairs: int | None = None, seconds: float = 20.0, jobs: int = 1) -> Tally:
    """Looks at random pairs, so many or for so long.

    Args:
      seed: of every draw.
      pairs: how many pairs; None for as many as there is time for.
      seconds: how long, when no number of pairs is given.
      jobs: processes to spread the work over; the counts do not depend on it.
    """
    from steptrace.testing.soundness import Tally, trial

    total = Tally()
    deadline = None if pairs is not None else time.monotonic() + seconds
    for first, tallies in enumerate(_blocks(seed, jobs, deadline)):
        for at, tally in enumerate(tallies):
            left = None if pairs is None else pairs - total.pairs
            if left is not None and tally.pairs >= left:
                total.add(trial(seed, first * _BLOCK + at, limit=left))
                return total
            total.add(tally)
    return total


def _blocks(seed: int, jobs: int, deadline: float | None) -> Iterator[list[Tally]]:
    """Blocks of programs in order, worked on in parallel, until the deadline or for ever."""
    if jobs == 1:
        number = 0
        while deadline is None or time.monotonic() < deadline:
            yield _block(seed, number)
            number += 1
        return
    with ProcessPoolExecutor(jobs) as pool:
        waiting: list[Future[list[Tally]]] = []
        number = 0
        try:
            while True:
                while len(waiting) < 2 * jobs and (deadline is None or time.monotonic() < deadline):
                    waiting.append(pool.submit(_block, seed, number))
                    number += 1
                if not waiting:
                    return
                yield waiting.pop(0).result()
        finally:
            pool.shutdown(cancel_futures=True)


def _block(seed: int, number: int) -> list[Tally]:
    from steptrace.testing.soundness import trial

    return [trial(seed, number * _BLOCK + at) for at in range(_BLOCK)]


def figures(total: Tally, seed: int, seconds: float) -> dict[str, Any]:
    """The counts as they are written."""
    return {
        "pairs": total.pairs,
        "accepted": total.accepted,
        "unsound": total.unsound,
        "over_refused": total.over_refused,
        "reasons": dict(sorted(total.reasons.items())),
        "strata": {
            name: {
                "pairs": stratum.pairs,
                "accepted": stratum.accepted,
                "unsound": stratum.unsound,
                "over_refused": stratum.over_refused,
                "share": round(stratum.share, 4),
            }
            for name, stratum in total.strata.items()
        },
        "legal": total.legal,
        "edits": total.edits,
        "dropped_waits": total.dropped,
        "implied_waits": total.implied,
        "examples": total.examples,
        "seed": seed,
        "seconds": round(seconds, 1),
    }


def report(total: Tally, seconds: float) -> str:
    """The counts as a table, with the first schedules that should have been refused."""
    parts_of: list[tuple[str, Tally | Stratum]] = [*total.strata.items(), ("all", total)]
    rows = [("stratum", "pairs", "accepted", "unsound", "refused, equal", "of the refused")]
    for name, stratum in parts_of:
        share = stratum.over_refused / max(1, stratum.pairs - stratum.accepted)
        counts = (stratum.pairs, stratum.accepted, stratum.unsound, stratum.over_refused)
        pairs, accepted, unsound, refused = (f"{count:,}" for count in counts)
        rows.append((name, pairs, accepted, unsound, refused, f"{share:.1%}"))
    parts = [
        aligned(rows),
        f"{total.pairs / max(seconds, 0.001):,.0f} pairs a second; {total.legal:,} of the pairs are steps of walks, "
        f"{total.edits:,} one edit away from one",
        f"of {total.dropped:,} schedules with one wait dropped, {total.dropped - total.implied:,} differ; "
        f"in {total.implied:,} other waits imply it",
    ]
    if total.reasons:
        reasons = [(f"{count:,}", reason) for reason, count in total.reasons.most_common()]
        parts.append("refused, equal:\n" + aligned(reasons, indent=2))
    parts += [f"accepted, and not equal:\n{example}" for example in total.examples]
    return "\n\n".join(parts)


COMMAND = Command(
    name="bench soundness",
    operands="",
    summary="Random schedules: whether the checker ever accepts one that is not equal to its source.",
    examples=(
        ("bench soundness", "twenty seconds of random schedules"),
        ("bench soundness --seed=2 --pairs=1000000", "a million of them; the same counts each time"),
        ("bench soundness --seed=2 --seconds=40 --json", "for scripts"),
    ),
    run=_run,
    define=_define,
    details="A judge that shares nothing with the checker decides over all orders of a schedule's events. It exits "
    "with 1 when the checker has accepted a schedule that is not equal.",
)
