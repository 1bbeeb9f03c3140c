"""Codes ST310-ST333: what can go wrong between step 0 and the last."""

from __future__ import annotations

from steptrace.diag.base import SteptraceError


class EmptyStepError(SteptraceError):
    """A step came to its `update` without a single micro-batch, and the program declares `empty="error"`.

    Every group of the step was dropped or filtered away, for example by a user's op that keeps groups whose rewards
    differ, when no group's do. An update on nothing is never made.

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
    and the index. For example a `.st` file in which the `sync_weights` before step 0 was deleted by hand.

    Way out: let a sync stand before the first `dispatch` that reads its weights.
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

        @steptrace.op(takes=("groups",), gives="groups")
        def twice(groups):
            return [*groups, *groups]            # error[ST314]

    Way out: return the groups that came in, or some of them.
    """

    code = "ST314"


class StalledRunError(SteptraceError):
    """A lane has waited for another one longer than it may.

    Under a schedule, lanes wait for one another where an op needs what another lane's op does. No schedule that is
    accepted can lock up, so a part has not come back: a rollout that hangs, a reward that waits for a service. The
    notes say what each lane waits for; the lane that is not among them is the one to look at.

        steptrace.run(program, parts, pipeline="pipelined-boundary", stall_s=60)    # and a step takes 90 s

    Ways out: mend the part that hangs, or give it a limit of its own; raise `stall_s` where steps take that long.
    """

    code = "ST315"


class WindowClosedError(SteptraceError):
    """A batch was dispatched although its window is not open.

    With `window=True` the batch of step k goes out once step k-1-staleness is committed. In a program traced from
    Python the `commit` of the step says so and schedules keep to it; a text edited by hand may have lost that:

        commit() lane=host ...                   # without {window=true}: error[ST317], when the dispatch comes early

    Way out: let the `commit` carry `window=true`, as the tracer writes it.
    """

    code = "ST317"


class StaggerError(SteptraceError):
    """The second batch cannot be held under this schedule: what holds it waits for it.

    With `stagger=True` the second batch is sampled when its step takes it, at the earliest once the first step is
    committed. A lane on which that take comes before an op of the first step would wait for itself.

    For example a lane that takes the groups of two steps ahead and scores those of one step ahead: the take of step 1
    stands there before the reward of step 0.

    Ways out: run without `stagger`, or take no more than one step ahead.
    """

    code = "ST318"


class LostRoundError(SteptraceError):
    """A step is to be sampled with weights that were never published: their round got lost.

    Under `async-weight-sync` a transfer or an apply that raises `ConnectionError` or `TimeoutError` is done again from
    the same copy, three times in all. A round that is lost each time is given up: what was published before goes on
    serving, the copy is kept, and the run says so in its remarks. The dispatch that needs those weights tries once
    more, and is refused when that fails too: with `weights="pinned"` the rollouts of step k are made with the weights
    of step k-1-staleness and no others, with `weights="freshest"` with none that are older. The cause is the error of
    the last try.

        steptrace.run("grpo{staleness=1}", parts, pipeline="async-weight-sync")   # and the engine is gone for a minute

    Ways out: let the rollout itself wait for an engine that comes back, or give it several engines; resume from the
    newest checkpoint once the engine is there again.
    """

    code = "ST319"


class StateAheadError(SteptraceError):
    """A part with a state of its own is called ahead of the checkpoints that hold that state.

    A checkpoint of step k holds what the program as written would have saved, whatever the schedule. A pipeline that
    takes groups ahead has called the rollout, the reward, and perhaps the reference for step k+1 by then, and their
    states would be those of step k+1.

        class Judge:                                     # a reward with a running mean
            def save_checkpoint(self, directory): ...
            def restore_checkpoint(self, directory): ...

        steptrace.run("grpo{staleness=1}", {"reward": Judge(), ...}, out="out", pipeline="pipelined-boundary")

    Ways out: make the part a function of what it is given (draws come from `key`); keep its state in a callback, which
    no pipeline calls ahead; run the program without taking ahead.
    """

    code = "ST316"
