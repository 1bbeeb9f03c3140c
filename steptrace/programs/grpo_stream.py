"""GRPO that trains on groups as they arrive."""

from __future__ import annotations

from steptrace.lang.definition import program
from steptrace.lang.step import Step


@program(staleness=0)
def grpo_stream(step: Step, prompts: int = 32, samples: int = 8, save_every: int = 10) -> None:
    """GRPO (Shao et al. 2024, arXiv:2402.03300) with groups taken, scored and packed as they arrive.

    The advantages look at one group only and gradients are un-normalised sums, so the update is that of ``grpo``
    wherever the same micro-batches come out.
    """
    step.dispatch(prompts=prompts, samples=samples)
    for mb in step.micro_batches(step.stream(estimator="grpo")):
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
