"""Codes ST500-ST529: saving a run and resuming it."""

from __future__ import annotations

from steptrace.diag.base import SteptraceError


class NoCheckpointError(SteptraceError):
    """There is nothing to resume from.

    A run is resumed from the newest complete checkpoint below `OUT/checkpoints`. Checkpoints are written by the
    program's `save_checkpoint`, and behind the last step of a program that has one. `steptrace run --resume` also takes
    a folder in which its run has begun and stopped before its first checkpoint: it starts at step 0. A folder in which
    none has begun is refused; so is, in Python, any folder without a checkpoint.

        steptrace run grpo --out runs/new --resume                            # error[ST500]
        steptrace.run(my_step, parts, steps=9, out="runs/new", resume=True)   # error[ST500]

    Ways out: run without resuming; name the folder that the first run was given as `out`; where the step has no
    `save_checkpoint`, put one behind its update: `with step.every(10): step.save_checkpoint()`.
    """

    code = "ST500"


class BrokenCheckpointError(SteptraceError):
    """A checkpoint is not what was written: a file is missing, cut short, or has other bytes.

    A checkpoint is written beside its place and moved there when it is complete, so a run that was killed while
    saving leaves no broken one; a full disk, a copy that was interrupted, or an edit does. Nothing was restored.

        truncate -s 100 runs/a/checkpoints/00000010/manifest.json
        steptrace run grpo --out runs/a --resume         # error[ST501]

    Way out: delete the folder that the message names and resume from the one before it.
    """

    code = "ST501"


class OtherProgramError(SteptraceError):
    """The checkpoint was written by another program.

    Parameters of the program count (`grpo{prompts=16}` is another program than `grpo`), source lines do not. To go
    on with other parameters is another experiment: start it from the old run's weights instead. The notes say what
    differs: the parameters, or if they are the same, the ops.

        steptrace run grpo --out runs/a
        steptrace run 'grpo{prompts=16}' --out runs/a --resume     # error[ST502]

    Way out: resume with the program that the message names.
    """

    code = "ST502"


class OtherModelError(SteptraceError):
    """The checkpoint holds the parameters of another model: other names, shapes or dtypes.

        steptrace.run(grpo, bind={"trainer": two_layers, ...}, steps=10, out="runs/a")
        steptrace.run(grpo, bind={"trainer": four_layers, ...}, steps=20, out="runs/a", resume=True)    # error[ST503]
        steptrace.restore("start", nnx.split(another_model)[1])                                         # error[ST503]

    Ways out: resume with the model of the first run; or start anew, from a checkpoint of the model that you have now.
    """

    code = "ST503"


class OtherSeedError(SteptraceError):
    """The checkpoint was written by a run with another seed, so its draws could not be continued.

        steptrace run grpo --seed 1 --out runs/a
        steptrace run grpo --seed 2 --out runs/a --resume          # error[ST504]

    Way out: resume with `--seed` as in the first run.
    """

    code = "ST504"


class UnwritableOutError(SteptraceError):
    """The output folder cannot be written.

    Whether it can is checked before step 0, so that no work is lost. Later the disk may be full: then the run ends
    before it publishes the weights that it could not save, and the checkpoint before is whole.

        steptrace run grpo --out /proc/run               # error[ST505]

    Way out: name a folder that exists or can be made, with the right to write and room on the disk.
    """

    code = "ST505"


class OutInUseError(SteptraceError):
    """The output folder already holds the checkpoints of a run, and this one does not resume it.

    Two runs in one folder would mix their records. So would two processes: while one runs in a folder, another is
    refused, also with `--resume`.

        steptrace run grpo --out runs/a
        steptrace run grpo --out runs/a                  # error[ST506]

    Ways out: `--resume` to continue it, another `--out`, or delete the folder.
    """

    code = "ST506"


class OtherStampError(SteptraceError):
    """The trainer comes back from its checkpoint at another version than it was saved at.

    The version says how many updates the parameters have seen: the rollout holds weights under it, and staleness is
    counted in it. A trainer that stamps its checkpoint when the last training call of a step returns is one behind
    where the update comes after that call, as it does while an update is held back.

        def fwd_bwd(self, micro_batch, **how):
            ...
            self.stamp = self.version        # the update of this step is still to come

    Way out: write the version that the last update returned; the checkpoints that were written before cannot be used.
    """

    code = "ST507"
