"""Runs the text of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping

from steptrace.ir.program import Program
from steptrace.motion import Schedule
from steptrace.passes.base import Pass
from steptrace.passes.pipeline_text import parse_pipeline
from steptrace.passes.registry import PASSES
from steptrace.passes.running import PipelineResult, run_passes


def run_pipeline(
    program: Program, text: str, *, source: Program | None = None, passes: Mapping[str, type[Pass]] = PASSES
) -> PipelineResult:
    """Applies a pipeline to a program.

    A pass that is refused leaves the program as it was, and a `missed` remark; so does one that would let an op of the
    user's run, whose writes stay, before what may fail ahead of it in the source.

    Args:
      program: a verified program, or a schedule.
      text: the pipeline, as `parse_pipeline` reads it.
      source: what ``program`` came from, where it is a schedule already.
      passes: the passes there are, by name.

    Raises:
      SteptraceError: the text is no pipeline of these passes; or a pass broke or crashed (see `run_passes`).
    """
    return run_passes(Schedule.of(program, source), parse_pipeline(text, passes))
