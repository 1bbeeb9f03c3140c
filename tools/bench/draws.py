"""What the benches of random programs share: how many are drawn, by how many processes."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Protocol, Self, TypeVar

from absl import flags


class Tallied(Protocol):
    """What is counted of random programs."""

    def add(self, other: Self, /) -> None:
        """Add what was found of other programs."""


Tally = TypeVar("Tally", bound=Tallied)


def define(values: flags.FlagValues, programs: int, what: str) -> None:
    """The flags: seed, programs, jobs, json."""
    flags.DEFINE_integer("seed", 0, "of every draw", 0, flag_values=values)
    flags.DEFINE_integer("programs", programs, f"how many {what} to look at", 1, flag_values=values)
    flags.DEFINE_integer("jobs", os.cpu_count() or 1, "processes to spread the work over", 1, flag_values=values)
    flags.DEFINE_bool("json", False, "end with one JSON object", flag_values=values)


def spread(
    measure: Callable[[int, range], Tally], seed: int, programs: int, jobs: int, *, block: int, total: Tally
) -> Tally:
    """Look at so many random programs; what is found does not depend on the number of jobs.

    Args:
      measure: looks at the programs of a seed with some numbers.
      seed: of every draw.
      programs: how many.
      jobs: processes to spread them over.
      block: programs that a process takes at a time.
      total: what nothing was counted in yet.
    """
    if jobs == 1:
        total.add(measure(seed, range(programs)))
        return total
    blocks = [range(first, min(first + block, programs)) for first in range(0, programs, block)]
    with ProcessPoolExecutor(jobs) as pool:
        for tally in pool.map(measure, [seed] * len(blocks), blocks):
            total.add(tally)
    return total
