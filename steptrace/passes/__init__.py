"""Passes: untrusted policies made of motions, and pipelines of them. Loads without jax."""

from steptrace.passes.base import Pass, text_of
from steptrace.passes.pipeline import run_pipeline
from steptrace.passes.pipeline_text import parse_pipeline
from steptrace.passes.registry import PASSES, PIPELINES
from steptrace.passes.remark import Remark
from steptrace.passes.running import PassRun, PipelineResult, reproducer_of, run_passes

__all__ = [
    "PASSES",
    "PIPELINES",
    "Pass",
    "PassRun",
    "PipelineResult",
    "Remark",
    "parse_pipeline",
    "reproducer_of",
    "run_passes",
    "run_pipeline",
    "text_of",
]
