"""Per-token log-probs of a causal language model. Convention: ``logp[r, i]`` belongs to token ``tokens[r, i]``."""

from steptrace_kernels.logps.api import logps
from steptrace_kernels.logps.choose import Plan
from steptrace_kernels.logps.cost import Cost
from steptrace_kernels.logps.dense import dense_logps
from steptrace_kernels.logps.fallback import CannotRunError, Fallback, Reason
from steptrace_kernels.logps.head import Head, Layout, Logps, RMSNorm, Strategy
from steptrace_kernels.logps.one_pass import fused_token_loss
from steptrace_kernels.logps.plan import plan
from steptrace_kernels.logps.validate import LogpsError

__all__ = [
    "CannotRunError",
    "Cost",
    "Fallback",
    "Head",
    "Layout",
    "Logps",
    "LogpsError",
    "Plan",
    "RMSNorm",
    "Reason",
    "Strategy",
    "dense_logps",
    "fused_token_loss",
    "logps",
    "plan",
]
