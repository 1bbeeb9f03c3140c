"""What a caller says about a job."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from steptrace.diag.job import JobOptionError, UnknownControlError
from steptrace.run.job.devices import mesh_sizes
from steptrace.run.job.recipe import Recipe

CONTROLS = ("shuffled-rewards",)
"""Jobs with one thing broken on purpose, which must learn nothing."""


@dataclass(frozen=True)
class JobConfig:
    """A job.

    Attributes:
      program: what is trained by, as ``steptrace.resolve`` takes it.
      task: a dataset of reasoning-gym.
      steps: RL updates to have done at the end; None for the recipe's.
      seed: of the initial parameters, the prompts' order and all sampling.
      out: folder for everything that is written; None for one below ``runs``.
      resume: go on where the run in ``out`` stopped.
      pipeline: passes to apply, in order.
      against: where the program is a schedule, what it was derived from; "" for the built-in program that it names.
      target: what to lower to.
      json: keep standard output free for the caller, and show progress on a terminal only.
      control: one of ``CONTROLS``, or "".
      eval_size: held-out problems of the evaluations before and after.
      tensorboard: write TensorBoard events too.
      profile: a file for the costs of the ops; None for none.
      events: a file for what lanes and devices did; None for none.
      timed: wait for the device after each op, so that the times of the phases are those of their work.
      sanitize: look for what users' ops do beside their declaration.
      orders: end by running the step in another order for a few steps, and by showing one that is refused.
      mesh: devices along the axes that the trainer is sharded over, as ``data=2,fsdp=2,context=2``; "" for one device.
      recipe: in place of the task's own.
    """

    program: str = "grpo"
    task: str = "spell_backward"
    steps: int | None = None
    seed: int = 0
    out: str | Path | None = None
    resume: bool = False
    pipeline: str = ""
    against: str = ""
    target: str = "inline"
    json: bool = False
    control: str = ""
    eval_size: int = 300
    tensorboard: bool = False
    profile: str | Path | None = None
    events: str | Path | None = None
    timed: bool = False
    sanitize: bool = False
    orders: bool = False
    mesh: str = ""
    recipe: Recipe | None = None

    def __post_init__(self) -> None:
        if self.steps is not None and self.steps < 1:
            raise JobOptionError(f"steps={self.steps}, and a job has at least 1")
        if self.eval_size < 1:
            raise JobOptionError(f"eval_size={self.eval_size}, and a job is evaluated on at least 1 problem")
        mesh_sizes(self.mesh)
        if self.control and self.control not in CONTROLS:
            raise UnknownControlError(f"there is no control {self.control!r}", help=f"there is {', '.join(CONTROLS)}")
