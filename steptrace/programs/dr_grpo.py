"""Dr. GRPO: group-relative advantages without the division by the deviation, and no reference."""

from __future__ import annotations

from steptrace.lang.definition import program
from steptrace.lang.step import Step


@program(staleness=0)
def dr_grpo(step: Step, prompts: int = 32, samples: int = 8, save_every: int = 10) -> None:
    """Dr. GRPO: each completion's advantage is its reward less its group's mean, not divided by the deviation.

    Liu et al. 2025, Understanding R1-Zero-Like Training (arXiv:2503.20783). The paper also divides the loss by a
    constant instead of each completion's length: that is an option of the trainer's loss.
    """
    step.dispatch(prompts=prompts, samples=samples)
    groups = step.take()
    scored = step.advantages(step.reward(groups), estimator="dr_grpo")
    batch = step.pack(scored)
    for mb in step.micro_batches(batch):
        step.fwd_bwd(mb)
    step.update()
    metrics = step.get_metrics()
    with step.every(save_every):
        step.save_checkpoint()
    step.sync_weights()
    step.commit()
    step.log(metrics)
    step.on_step_end(reads=["metrics"])
