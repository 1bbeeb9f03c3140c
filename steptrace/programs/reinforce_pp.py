"""REINFORCE++: advantages normalised over the whole step."""

from __future__ import annotations

from steptrace.lang.definition import program
from steptrace.lang.step import Step


@program(staleness=0)
def reinforce_pp(step: Step, prompts: int = 32, samples: int = 8, save_every: int = 10) -> None:
    """REINFORCE++: advantages are rewards normalised by mean and deviation over all completions of the step.

    Hu et al. 2025, REINFORCE++ (arXiv:2501.03262). The normalisation needs every group of the step, so nothing can
    be trained before the last one arrived: this program has no streaming form.
    """
    step.dispatch(prompts=prompts, samples=samples)
    groups = step.take()
    scored = step.advantages(step.reward(groups), estimator="reinforce_pp")
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
