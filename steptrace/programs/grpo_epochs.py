"""GRPO with several updates for each rollout, over epochs and mini-batches."""

from __future__ import annotations

from steptrace.lang.definition import program
from steptrace.lang.step import Step


@program(staleness=0)
def grpo_epochs(
    step: Step, prompts: int = 32, samples: int = 8, epochs: int = 2, mini_batches: int = 4, save_every: int = 10
) -> None:
    """GRPO (Shao et al. 2024, arXiv:2402.03300) with the inner loop of PPO (Schulman et al. 2017, arXiv:1707.06347).

    Each epoch trains on the mini-batches in the same order, with one update for each. The policy that the ratio
    compares with is the one that sampled: its log-probs came with the completions (``rollout_logps``), so
    there is no ``old_logps``, which would move with the updates.
    """
    step.dispatch(prompts=prompts, samples=samples)
    groups = step.take()
    scored = step.advantages(step.reward(groups), estimator="grpo")
    for _ in step.epochs(epochs):
        for part in step.mini_batches(scored, mini_batches):
            for mb in step.micro_batches(step.pack(part)):
                mb = step.ref_logps(mb)
                step.fwd_bwd(mb)
            step.update()
    metrics = step.get_metrics()
    with step.every(save_every):
        step.save_checkpoint()
    step.sync_weights()
    step.commit()
    step.log(metrics)
    step.on_step_end(reads=["metrics"])
