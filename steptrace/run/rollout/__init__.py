"""The built-in sampler, the weights it holds, and the frozen reference."""

from steptrace.run.rollout.fleet import Fleet
from steptrace.run.rollout.reference import FrozenReference
from steptrace.run.rollout.rollout import JaxRollout
from steptrace.run.rollout.sampler import CachedModel, Sampler, SamplingOptions

__all__ = ["CachedModel", "Fleet", "FrozenReference", "JaxRollout", "Sampler", "SamplingOptions"]
