"""Codes ST300-ST333: lowering a program to a target and binding its parts."""

from __future__ import annotations

from steptrace.diag.base import SteptraceError


class UnknownTargetError(SteptraceError):
    """There is no target of that name.

    A target is what a program is lowered to. `inline` runs every op in this process; `process` has trainer, rollout and
    reference in processes of their own.

        steptrace run grpo --target=tpu-pod      # error[ST300]

    Way out: name one of the targets that the message lists.
    """

    code = "ST300"


class NotLowerableError(SteptraceError):
    """The target has no rule for an op as it stands in the program.

    Each op is lowered by a rule of the target, and a rule may need a capability. The message names the op, what it
    asks for, and what the target lacks. For example, the `inline` target runs ops in program order, so an op with a
    shift (one that runs steps ahead of its place) has no rule there.

    A checkpoint is such an op too: a resumed run goes on behind its `save_checkpoint` with what the checkpoint holds,
    metrics, versions, flags and numbers. It holds no groups and no micro-batches, so they are used before it:

        step.save_checkpoint()
        show_samples(groups)                     # error[ST301]: a resumed run has no groups to show

    Ways out: run the program on a target with the capability, or drop the pass that asked for it; move a checkpoint
    behind the last op that the message names.
    """

    code = "ST301"


class UnknownPassError(SteptraceError):
    """The pipeline names a pass that does not exist.

        steptrace opt grpo -p take-a-head        # error[ST302]

    Way out: use one of the names that the message shows: a pass, or a pipeline that has a name of its own. An empty
    pipeline leaves the program as written.
    """

    code = "ST302"


class UnboundPartError(SteptraceError):
    """An op of the program needs a part that nothing was bound to.

        @steptrace.program
        def job(step):
            ...
            mb = step.ref_logps(mb)              # needs `reference`

        steptrace.run(job, bind={"trainer": ..., "rollout": ...})     # error[ST303]

    Ways out: bind the part (`bind={"reference": my_reference}`), or take the op out of the program.
    """

    code = "ST303"


class WrongPartError(SteptraceError):
    """What was bound does not have the shape that the op calls for.

    A part needs the methods that the program's ops call, with the arguments they are called with; the protocols
    `steptrace.Trainer`, `steptrace.Rollout`, ... say which. Before step 0 each bound part is checked: the methods
    exist, can be called with those arguments, and attributes have the right type.

        class MyTrainer:
            def fwd_bwd(self): ...               # takes no micro-batch: error[ST304]

    Way out: give the method the arguments that the message prints.
    """

    code = "ST304"


class UnknownRoleError(SteptraceError):
    """`bind` has a key that is neither a role nor one of the program's own ops.

        steptrace.run(grpo, bind={"trianer": t})                      # error[ST305]

    Way out: use one of the roles that the message lists.
    """

    code = "ST305"


class UnboundOpError(SteptraceError):
    """A user's op has no implementation here.

    A program read from a `.st` file carries the declaration of its users' ops, not their Python.

        steptrace.run("job.st", bind=parts)              # uses the op `length_penalty`: error[ST306]

    Ways out: import the module that defines the op, or bind the op by name
    (`bind={"length_penalty": length_penalty, ...}`).
    """

    code = "ST306"


class PartResultError(SteptraceError):
    """A part returned something of the wrong shape or type.

    The message names the part, what came back and what was expected. Nothing of it was trained on. For example a
    rollout that returns 31 lists for 32 prompts, completions whose `logps` are shorter than their `tokens`, or a
    reference whose log-probs have another shape than the micro-batch's tokens.

    Way out: return what the protocol of the part says, `steptrace.Rollout` say.
    """

    code = "ST307"


class BadRunOptionError(SteptraceError):
    """An option of `steptrace.run` has a value that makes no sense, or there is no such option.

        steptrace.run(grpo, bind=parts, steps=-3)                     # error[ST308]
        steptrace.run(grpo, bind=parts, steps=3, pipline="a")         # error[ST308]

    Way out: the message says what is allowed; `help(steptrace.run)` shows every option.
    """

    code = "ST308"


class StreamedStepAdvantagesError(SteptraceError):
    """Advantages that look at the whole step are bound to a program that streams its groups.

    A stream trains on a group as soon as it arrives, so the advantages are called with one group at a time. A part
    whose attribute `scope` is "step" says that it needs all groups of a step at once, for a mean over them say.

        steptrace.run("grpo_stream", bind=parts | {"advantages": GlobalNormalized()})     # error[ST309]

    Ways out: run a program that takes the whole step first (`take`, `reward`, `advantages`, `pack`), such as `grpo`;
    or bind advantages that compare the completions of one prompt.
    """

    code = "ST309"
