"""When a device had nothing to do."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from steptrace.simulate import TRAINER
from steptrace.simulate.record import TRAINS
from steptrace.timeline.recording import Recording

_LEAST = 1e-3
"""A gap is told from this share of a step on."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A device without work.

    Attributes:
      device: the device.
      start, end: in seconds.
      boundary: the step behind whose last training call it lies, in front of the next step's first; None elsewhere.
    """

    device: str
    start: float
    end: float
    boundary: int | None

    @property
    def seconds(self) -> float:
        """How long it was."""
        return self.end - self.start


def gaps_of(recording: Recording, device: str = TRAINER) -> tuple[Gap, ...]:
    """The gaps between the work of a device, in order; those of less than a thousandth of a step are left out.

    What comes between two steps, the update say, counts as work.
    """
    work = sorted((span for span in recording.spans if span.device == device), key=lambda span: span.start)
    begins = list(recording.begins().values())
    step_s = (begins[-1] - begins[0]) / (len(begins) - 1) if len(begins) > 1 else 0.0
    trained = [span for span in work if span.kind in TRAINS and not span.what]
    borders = [(a.end, b.start, a.step) for a, b in pairwise(trained) if a.step != b.step]
    found: list[Gap] = []
    at = work[0].end if work else 0.0
    for span in work[1:]:
        if span.start - at > _LEAST * step_s:
            inside = [step for begin, end, step in borders if begin <= at and span.start <= end]
            found.append(Gap(device, at, span.start, inside[0] if inside else None))
        at = max(at, span.end)
    return tuple(found)


def boundary_idle(recording: Recording) -> dict[int, float]:
    """By step, how long the trainer's device was idle between its last micro-batch and the next step's, in seconds."""
    found = dict.fromkeys(list(recording.begins())[:-1], 0.0)
    for gap in gaps_of(recording):
        if gap.boundary is not None:
            found[gap.boundary] = found.get(gap.boundary, 0.0) + gap.seconds
    return found
