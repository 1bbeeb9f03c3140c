"""Searches pipelines of passes for the schedule with the smallest period.

A beam search: each round puts one more pass behind each of the best pipelines so far. The graph of the schedule judges,
so what is found is legal and its period exact; the lower bound of the program says when there is no more to find.
Passes are tried in the order of their names and nothing is drawn, so the same question has the same answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from steptrace.cost.bound import Bound, bound_of
from steptrace.cost.judged import Judged, judged
from steptrace.cost.quantity import seconds_in_words
from steptrace.diag.base import SteptraceError
from steptrace.ir import Program
from steptrace.motion import Schedule
from steptrace.passes import parse_pipeline, run_passes
from steptrace.simulate import Durations

SINGLE = (
    "async-checkpoint",
    "async-weight-sync",
    "defer-metrics",
    "fuse-update",
    "pipeline-micro-batches",
    "send-ahead",
    "stage-after-update",
    "stage-before-update",
    "stream-micro-batches",
)
"""The passes that are tried; `take-ahead` is too, as far ahead as the contract lets it. None changes the contract."""

WIDTH = 4
"""How many pipelines are carried on from round to round."""

NEAR = 1e-9
"""How near the bound, as a share of it, is on it."""


@dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes:
      pipeline: the passes, as `steptrace opt -p` takes them; "" where the program as written is the best.
      judged: the schedule, with its period.
      bound: of every legal schedule.
      tried: how many schedules were judged.
      why: why the search stopped.
    """

    pipeline: str
    judged: Judged
    bound: Bound
    tried: int
    why: str


@dataclass(frozen=True)
class _State:
    pipeline: tuple[str, ...]
    schedule: Schedule
    judged: Judged

    @property
    def rank(self) -> tuple[float, int, tuple[str, ...]]:
        return float(f"{self.judged.period.seconds:.12g}"), len(self.pipeline), self.pipeline


def autoschedule(
    source: Program,
    durations: Durations,
    *,
    micro_batches: int,
    memory: float | None = None,
    bytes_of: Callable[[Judged], float] | None = None,
    most_passes: int = 8,
) -> Found:
    """Search for the schedule with the smallest period.

    Args:
      source: the program, as it is written.
      durations: how long its ops take.
      micro_batches: how many a step has.
      memory: bytes that a schedule may hold; None for as many as it likes.
      bytes_of: counts them.
      most_passes: the most passes of a pipeline.

    Raises:
      SteptraceError: the program itself has no period.
    """
    bound = bound_of(source, durations, micro_batches=micro_batches)
    start = Schedule.of(source)
    first = _State((), start, judged(start, durations, micro_batches=micro_batches, bound=bound))
    beam, best, seen, tried = [first], first, {source}, 1
    why = f"pipelines of {most_passes} passes are the longest that are tried"
    for _ in range(most_passes):
        if best.judged.period.seconds <= bound.seconds * (1 + NEAR):
            why = f"no legal schedule is faster: {bound.why}"
            break
        fresh = []
        for schedule, pipeline in _longer(beam):
            if schedule.program in seen:
                continue
            seen.add(schedule.program)
            tried += 1
            try:
                found = judged(schedule, durations, micro_batches=micro_batches, bound=bound)
            except SteptraceError:
                continue
            if memory is None or bytes_of is None or bytes_of(found) <= memory:
                fresh.append(_State(pipeline, schedule, found))
        if not fresh:
            why = "no pass changes the best schedules any more" + ("" if memory is None else ", within the memory")
            break
        beam = sorted(fresh, key=lambda state: state.rank)[:WIDTH]
        best = min(best, beam[0], key=lambda state: state.rank)
    over = best.judged.period.seconds - bound.seconds
    if over > bound.seconds * NEAR:
        why += f"; the bound is {seconds_in_words(over)} below: {bound.why}"
    return Found(",".join(best.pipeline), best.judged, bound, tried, why)


def _longer(beam: list[_State]) -> Iterator[tuple[Schedule, tuple[str, ...]]]:
    """Each schedule with one more pass, where the pass changes it."""
    for state in beam:
        for text in _passes(state.schedule.source):
            if text in state.pipeline:
                continue
            try:
                result = run_passes(state.schedule, parse_pipeline(text))
            except SteptraceError:
                continue
            if result.schedule is not state.schedule and result.schedule.program != state.schedule.program:
                yield result.schedule, (*state.pipeline, text)


def _passes(source: Program) -> list[str]:
    ahead = [f"take-ahead{{depth={depth}}}" for depth in range(1, min(2, source.contract.staleness) + 1)]
    return sorted((*SINGLE, *ahead))
