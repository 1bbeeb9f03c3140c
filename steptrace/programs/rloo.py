"""RLOO: each completion is judged against the others of its group."""

from __future__ import annotations

from steptrace.lang.definition import program
from steptrace.lang.step import Step


@program(staleness=0)
def rloo(step: Step, prompts: int = 32, samples: int = 8, save_every: int = 10) -> None:
    """RLOO: each completion's advantage is its reward less the mean reward of the other completions of its group.

    Ahmadian et al. 2024, Back to Basics (arXiv:2402.14740). The paper puts the KL term into the reward; here it is
    a term of the trainer's loss, made from the reference's log-probs.
    """
    step.dispatch(prompts=prompts, samples=samples)
    groups = step.take()
    scored = step.advantages(step.reward(groups), estimator="rloo")
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
