"""GRPO: group-relative advantages, one update a step."""

from __future__ import annotations

from steptrace.lang.definition import program
from steptrace.lang.step import Step


@program(staleness=0)
def grpo(step: Step, prompts: int = 32, samples: int = 8, save_every: int = 10) -> None:
    """GRPO: each completion's advantage is its reward less its group's mean, divided by the group's deviation.

    Shao et al. 2024, DeepSeekMath (arXiv:2402.03300), with one update for each rollout.
    """
    step.dispatch(prompts=prompts, samples=samples)
    groups = step.take()
    scored = step.advantages(step.reward(groups), estimator="grpo")
    batch = step.pack(scored)
    for mb in step.micro_batches(batch):
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
