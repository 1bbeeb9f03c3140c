"""Lowering: from a program to a flat plan of calls on bound parts. Loads without jax."""

from steptrace.lower.lowering import lower
from steptrace.lower.plan import Call, LoopPlan, Plan, PlanNode, Read
from steptrace.lower.targets import TARGETS, Target, target_named

__all__ = ["TARGETS", "Call", "LoopPlan", "Plan", "PlanNode", "Read", "Target", "lower", "target_named"]
