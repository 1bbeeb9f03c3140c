"""Diagnostics: codes, how they are rendered, and their manual pages. Imports nothing of steptrace."""

from steptrace.diag.base import Note, SteptraceError
from steptrace.diag.loc import Loc

__all__ = ["Loc", "Note", "SteptraceError"]
