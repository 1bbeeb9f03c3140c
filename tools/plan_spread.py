"""Step times with durations that are spread: `steptrace plan PROGRAM --jitter --stragglers`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from .command import UsageError

if TYPE_CHECKING:
    from steptrace.cost import Costs, Judged
    from steptrace.simulate import Spread


def spreads_of(jitter: float, stragglers: str) -> dict[str, Spread]:
    """How durations are spread, as the command was told; by the id or kind of an op.

    Args:
      jitter: of every op, its standard deviation as a share of what it takes; 0 for none.
      stragglers: ``fwd_bwd=0.02x5``: one in fifty takes five times as long; several with commas between.

    Raises:
      UsageError: the text says something else.
    """
    from steptrace.simulate import ALL, Spread

    found = {ALL: Spread(jitter)} if jitter else {}
    for word in filter(None, stragglers.split(",")):
        match = re.fullmatch(r"([\w.]+)=(0?\.\d+|[01](?:\.0*)?)x(\d+(?:\.\d+)?)", word.strip())
        if match is None:
            raise UsageError(f"--stragglers: `{word}` is none; one is fwd_bwd=0.02x5: a chance, and how much longer")
        found[match[1]] = Spread(jitter, float(match[2]), float(match[3]))
    return found


def spread_facts(found: Judged, costs: Costs, spreads: dict[str, Spread], *, runs: int, seed: int) -> dict[str, Any]:
    """How step times are spread, for scripts; times in seconds.

    Raises:
      UsageError: durations of an op are spread that the schedule does not have.
    """
    from steptrace.cost import step_times
    from steptrace.cost.step_times import QUANTILES
    from steptrace.diag.base import did_you_mean
    from steptrace.simulate import ALL

    ops = [op for program in (found.schedule.program, found.schedule.source) for op in program.ops()]
    known = {ALL, *(op.id for op in ops), *(op.kind for op in ops)}
    for name in spreads:
        if name not in known:
            near = did_you_mean(name, known)
            raise UsageError(f"--stragglers: the schedule has no op `{name}`" + (near and f"; {near}"))
    times = step_times(found, costs, spreads=spreads, runs=runs, seed=seed)
    quantiles = {f"p{round(share * 100):02d}": times.quantile(share) for share in QUANTILES}
    return {
        "step_s": {**quantiles, "mean": times.mean_s},
        "stretch": times.stretch,
        "runs": times.runs,
        "steps": times.steps,
        "seed": seed,
    }
