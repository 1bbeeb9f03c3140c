"""Codes ST310-ST333: what can go wrong between step 0 and the last."""

from __future__ import annotations

from steptrace.diag.base import SteptraceError


class EmptyStepError(SteptraceError):
    """A step came to its `update` without a single micro-batch, and the program declares `empty="error"`.

    Every group of the step was dropped or filtered away. An update on nothing is never made.

    Ways out: `@steptrace.program(empty="skip")` skips the update of such a step and trains on; or find out why
    no group was left (`steptrace.run` records `groups` for each step).
    """

    code = "ST310"


class PartialStepError(SteptraceError):
    """The data ended in the middle of a step, and the program declares `partial="error"`.

        32 prompts a step, 100 in the file: the fourth step gets 4.

    Ways out: `partial="train"` trains the smaller step, `partial="drop"` leaves its prompts untrained; or bind a
    source that does not end.
    """

    code = "ST311"


class UnpublishedWeightsError(SteptraceError):
    """Generation asked for weights that no sync has published.

    The rollouts of step k are made with the weights that step k-1-staleness published. The message names the step
    and the index. This is a bug in a hand-edited schedule: the checks refuse such a program before it runs.
    """

    code = "ST312"


class TaskValueError(SteptraceError):
    """A user's op returned something else than it declares.

        @steptrace.op(takes=("groups",), gives="groups")
        def keep(groups):
            groups.sort()                        # returns None: error[ST313]

    Way out: return one value for each declared result, in order.
    """

    code = "ST313"


class MixedGroupsError(SteptraceError):
    """An op returned groups that are not those it was given.

    Groups are known by their ids. An op on groups may leave some out and may change what they carry; it may not
    invent ids or give one id twice, since rewards and advantages would then be attached to other samples.
    """

    code = "ST314"
