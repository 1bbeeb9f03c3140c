"""Validation: a schedule is run beside its source, in layers that share nothing with the proofs about edges."""

from steptrace.check.validation.finding import Finding, Spot
from steptrace.check.validation.instances import Setting, run_order
from steptrace.check.validation.report import LAYERS, Layer, Report, prove, validate
from steptrace.check.validation.runs import Run, Stuck, line_of, run_of
from steptrace.check.validation.sides import Pair, check_source, pair_of
from steptrace.check.validation.windows import Budget, Window, window_of

__all__ = [
    "LAYERS",
    "Budget",
    "Finding",
    "Layer",
    "Pair",
    "Report",
    "Run",
    "Setting",
    "Spot",
    "Stuck",
    "Window",
    "line_of",
    "check_source",
    "pair_of",
    "prove",
    "run_of",
    "run_order",
    "validate",
    "window_of",
]
