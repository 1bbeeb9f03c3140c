"""Lowering: from a program to a flat plan of calls on bound parts. Loads without jax."""

from steptrace.lower.lowering import lower
from steptrace.lower.plan import Call, Hold, Lane, LoopPlan, Plan, PlanNode, Read, StreamPlan
from steptrace.lower.targets import TARGETS, Target, target_named

__all__ = [
    "TARGETS",
    "Call",
    "Hold",
    "Lane",
    "LoopPlan",
    "Plan",
    "PlanNode",
    "Read",
    "StreamPlan",
    "Target",
    "lower",
    "target_named",
]
