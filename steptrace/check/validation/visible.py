"""What can be seen from outside a run, and what of it stays when the run ends early."""

from __future__ import annotations

from steptrace.ir import RESOURCES

STAYING = frozenset(
    {
        "params",
        "optimizer",
        "trainer.step",
        "checkpoints",
        "rollout.weights",
        "policy.version",
        "queue.training",
        "log",
        "callbacks",
    }
)
"""Built-in resources whose changes stay: updates, checkpoints, published weights, commits, log lines, callbacks."""

PASSING = frozenset({"trainer.calls", "rng", "prompts.cursor"})
"""Built-in resources that are seen, and whose changes are dropped, or made again, when a run ends early: calls of a
step without its update, prompts of a step without its commit."""


def stays(resource: str) -> bool:
    """Whether a change of a resource stays when the run ends; whatever is the user's does."""
    return resource in STAYING or resource not in RESOURCES


def seen(resource: str) -> bool:
    """Whether what a resource holds after the last step, or what went through it, is seen from outside."""
    return resource in PASSING or stays(resource)
