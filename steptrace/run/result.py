"""What a run gives back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class RunResult:
    """Outcome of ``steptrace.run``.

    Attributes:
      program: name of the program.
      pipeline: the pipeline it was run under, "" for program order.
      target: the target it was lowered to.
      seed: seed of the run.
      steps: steps that are done, those before a resume included.
      first_step: the step this call began with; 0 unless it resumed.
      records: the logged metrics of this call, in order: those of its last 10,000 steps, the rest of a resumed step
        included. A tracker is told of all.
      params_digest: SHA-256 of the final parameters.
      calls_digest: of the trainer's calls with hashed inputs, in order, those before a resume included.
      trained_groups_digest: of the ids of the trained groups, in order.
      phase_seconds: time spent in each kind of op, in seconds.
      phase_ms: median milliseconds a step of each kind of op, over at most the last 512 steps.
      remarks: what passes of the pipeline have left undone, and why; that a resumed run had nothing left; why staging
        was switched off; in a sanitized run, which declared effects of users' ops were never used.
      info: what the trainer says of itself: capabilities, compile counts.
    """

    program: str
    pipeline: str
    target: str
    seed: int
    steps: int
    first_step: int
    records: tuple[Mapping[str, float], ...] = field(repr=False)
    params_digest: str
    calls_digest: str
    trained_groups_digest: str
    phase_seconds: Mapping[str, float]
    phase_ms: Mapping[str, float]
    info: Mapping[str, object] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
