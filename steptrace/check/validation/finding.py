"""A counterexample: the run in which a schedule differs from its source, and what is to blame."""

from __future__ import annotations

from dataclasses import dataclass

from steptrace.check.validation.instances import Setting
from steptrace.diag.base import Note, SteptraceError
from steptrace.diag.loc import Loc


@dataclass(frozen=True, slots=True)
class Spot:
    """A sentence of a counterexample, and the user's line it speaks about."""

    text: str
    loc: Loc | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """A counterexample.

    Attributes:
      error: the class of the diagnostic.
      message: what is wrong, one sentence.
      setting: the run: counts, flags, where it begins.
      spots: the instances involved, each with its line.
      help: a way out, or "".
    """

    error: type[SteptraceError]
    message: str
    setting: Setting
    spots: tuple[Spot, ...] = ()
    help: str = ""

    def raised(self) -> SteptraceError:
        """The counterexample as a coded error."""
        notes = tuple(Note(spot.text, spot.loc) for spot in self.spots)
        loc = next((spot.loc for spot in reversed(self.spots) if spot.loc is not None), None)
        run = Note(f"seen in a run of {self.setting}; @0 is its first step, @(0,1) micro-batch 1 of that")
        return self.error(self.message, loc=loc, notes=(run, *notes), help=self.help)

    def __str__(self) -> str:
        return self.raised().render()
