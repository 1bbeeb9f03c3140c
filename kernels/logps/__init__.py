"""Per-token log-probs of a causal language model. Convention: ``logp[r, i]`` belongs to token ``tokens[r, i]``."""

from steptrace_kernels.logps.dense import Logps, dense_logps

__all__ = ["Logps", "dense_logps"]
