"""Codes ST322-ST326: what a run finds out about users' ops that their declarations do not say."""

from __future__ import annotations

from steptrace.diag.base import SteptraceError


class UndeclaredAccessError(SteptraceError):
    """An op read or wrote a resource that its declaration does not name.

    Passes move ops by what they declare. An op that touches more may be moved past the op it depends on, and the
    schedule would still be called equal. The message names the op, what it touched and the declaration to add; the
    place is the line in the body of the op.

        @steptrace.op(reads=["notes[k]"], writes=[])
        def compare(*, resources):
            return resources.read("notes[k-1]")      # error[ST322]: declares [k], touched [k-1]

    Ways out: declare it; or read what is declared.
    """

    code = "ST322"


class UnreachableResourceError(SteptraceError):
    """An op asked `resources` for something that they do not give.

    Users' own resources are read and written. Built-in ones are read only, and only those that are values on the host
    or have a copy: `metrics`, `policy.version`, `rollout.weights`, `params`, `trainer.step`, `queue.training`,
    `queue.serving`, `prompts.cursor`. A cell is asked for by its step, `notes[k-1]`.

        resources.write("params", mine)              # error[ST323]: the trainer's

    Ways out: take what the op needs as an operand; declare a resource of your own with `steptrace.resource`.
    """

    code = "ST323"


class CapturedStateError(SteptraceError):
    """A user's op holds the trained model, or another part of the run, outside its operands.

    The function closes over it, or finds it in a global variable: a read (perhaps a write) of parameters that no
    declaration names. It also goes stale: the trainer keeps a copy of its own, and gives its buffers away.

        model = Decoder(...)

        @steptrace.op(takes=("groups",), gives="groups", reads=["host[k]"], writes=[])
        def judged(groups):
            return [... model(...) ...]              # error[ST324]

    Ways out: declare `reads=["params"]` and ask `resources.read("params")` for the parameters as they are at that
    place of the step; for a frozen model, which nobody trains, declare `reads=["reference.params"]`.
    """

    code = "ST324"


class ChangedInPlaceError(SteptraceError):
    """A user's op changed a value in place that it was given, or an array that it closes over.

    Values have other readers: the same groups are logged, packed and hashed elsewhere, under a schedule at the same
    time. An op returns what it makes.

        @steptrace.op(takes=("groups",), gives="groups", reads=["host[k]"], writes=[])
        def clipped(groups):
            for group in groups:
                group.rewards[:] = group.rewards.clip(-1, 1)     # error[ST325]
            return groups

    Way out: make a new one, `dataclasses.replace(group, rewards=group.rewards.clip(-1, 1))`.
    """

    code = "ST325"


class UnsavedResourcesError(SteptraceError):
    """A program that saves checkpoints keeps values in resources of its users' ops.

    A checkpoint holds what the parts, the carries and the values of the step are, and not what users' ops wrote by
    `resources.write`: a resumed run would go on with other values than the run that was interrupted.

        seen = steptrace.resource("seen")

        @steptrace.op(reads=[seen], writes=[seen])
        def count(*, resources):
            resources.write(seen, (resources.read(seen) or 0) + 1)

    Ways out: carry numbers from step to step with `step.carry`; keep the state in a callback or a reward with
    `save_checkpoint` and `restore_checkpoint`; run without `out`.
    """

    code = "ST326"
