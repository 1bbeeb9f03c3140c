"""Codes ST630-ST649: the main job, `steptrace run PROGRAM`."""

from __future__ import annotations

from steptrace.diag.base import SteptraceError


class TrackerMissingError(SteptraceError):
    """TensorBoard events were asked for, and the package that writes them is not installed.

    They are written by tensorboardX, an optional dependency. Checked before anything is trained.

    Example::

        steptrace run grpo --tensorboard         # in an environment without tensorboardX

    Ways out: ``python -m pip install 'steptrace[tensorboard]'``, or leave the flag out: the same figures are in
    ``metrics.jsonl``.
    """

    code = "ST630"


class UnknownControlError(SteptraceError):
    """There is no control of that name.

    A control is the same job with one thing broken on purpose, so that it must learn nothing.

    Example::

        steptrace run grpo --control=no-rewards  # there is shuffled-rewards

    Ways out: the names that the message lists, or leave ``--control`` out.
    """

    code = "ST631"


class OtherJobError(SteptraceError):
    """The output folder belongs to a job with other settings, so it cannot be resumed with these.

    Task, recipe (model, warm-up, optimizer, loss), control and size of the evaluation are kept in ``job.json`` of
    the folder. The number of steps may differ: a finished run can be taken further.

    Example::

        steptrace run grpo --task spell_backward --out runs/a
        steptrace run grpo --task chain_sum --out runs/a --resume

    Ways out: resume with the settings of the first run, which the message shows; or start anew in another folder.
    """

    code = "ST632"


class NoAnswersError(SteptraceError):
    """The task has no right answers to warm up on.

    The supervised warm-up trains on questions with their answers, and some datasets only judge answers and give
    none. Without a warm-up a model this small never samples a right answer, so there would be no reward to learn from.

    Example::

        a dataset whose items all have ``answer`` None

    Ways out: another task; or ``steptrace.run`` with a model that was trained before.
    """

    code = "ST633"


class NothingFitsError(SteptraceError):
    """No question of the task is short enough for the recipe's model.

    Questions and answers that exceed the recipe's limits (``longest_prompt`` and ``longest_answer``, in tokens) are
    left out, with a line that says how many; here that leaves none on one side of the split.

    Example::

        steptrace run grpo --task gsm_symbolic   # with a recipe for prompts of 64 tokens

    Ways out: another task, or a recipe with larger limits: ``JobConfig(recipe=Recipe(longest_prompt=1024))``.
    """

    code = "ST634"


class JobOptionError(SteptraceError):
    """An option of the job is out of its range.

    Example::

        run_job(JobConfig(steps=0))              # a job has at least one step
        run_job(JobConfig(eval_size=0))          # and is evaluated on at least one problem

    Ways out: the range that the message states.
    """

    code = "ST635"


class TooFewDevicesError(SteptraceError):
    """The mesh of a job has more devices than the process.

    A process finds its devices once, when it starts to use them. One with CPUs alone has one, unless it is told to make
    several of them, which is slow and good for trying out.

    Example::

        steptrace run grpo --mesh data=2,fsdp=2,context=2        # on a machine with one device

    Ways out: a smaller mesh; ``XLA_FLAGS=--xla_force_host_platform_device_count=8 steptrace run ...`` for eight devices
    on a CPU.
    """

    code = "ST637"


class BrokenJobFolderError(SteptraceError):
    """A file of the output folder that resuming needs is not what the job wrote.

    ``job.json`` holds the settings, ``warmup/facts.json`` what the warm-up reached. Both are written whole or not at
    all, so a killed run does not break them; an edit or an interrupted copy does.

    Example::

        echo > runs/a/job.json
        steptrace run grpo --out runs/a --resume

    Ways out: put the file back; for a broken warm-up, delete the folder ``warmup``, and it is trained again, to the
    same bits.
    """

    code = "ST636"
