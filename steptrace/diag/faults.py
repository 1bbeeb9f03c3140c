"""Codes ST650-ST654: faults that were put into a run on purpose."""

from __future__ import annotations

from steptrace.diag.base import SteptraceError


class UnknownFaultOpError(SteptraceError):
    """A fault names an op that the run does not have.

    Ops are named by their id or by their kind, as `steptrace dump` prints them. Under a pipeline an op may have been
    split: `update` of `grpo` is `apply_deferred_update` in `pipelined-boundary`.

        steptrace.run("grpo", parts, around=[inject(Fault("updat", step=2))])      # error[ST650]

    Ways out: name an op of the schedule that is run (`steptrace opt PROGRAM -p PIPELINE`); a kind names every op of it.
    """

    code = "ST650"


class FaultNotMetError(SteptraceError):
    """The run came to its end, and a fault that was put into it never came.

    Nothing was tested then. The op stands under a condition that was never true, the step is behind the end of the
    run, or the micro-batch is one that the step does not have.

        steptrace.run("grpo", parts, steps=5, around=[inject(Fault("pack", step=7))])      # error[ST651]

    Ways out: name a step and a micro-batch that the run has; `inject(..., may_miss=True)` where it depends on timing
    whether the op runs, and look at `unmet` afterwards.
    """

    code = "ST651"


class BadFaultError(SteptraceError):
    """A fault is described by values that mean nothing.

        Fault("pack", step=2, kind="explode")      # error[ST652]

    Ways out: one of the kinds `raise`, `lost-before`, `lost-after`, `kill`, `hang`, `slow`; a step from -1 on, which
    is what stands before step 0; seconds from 0 on; with `worker=`, a role whose part has a process of its own, and
    `kill`, `hang` or `slow`.
    """

    code = "ST652"


class InjectedFaultError(SteptraceError):
    """An op failed because a fault was put there: what `kind="raise"` raises unless it is given another error.

        steptrace.run("grpo", parts, around=[inject(Fault("pack", step=2))])      # error[ST653]

    Way out: none is needed. Where a test sees it, the run handed the error of its part on as it should.
    """

    code = "ST653"


class HangReleasedError(SteptraceError):
    """An op that was made to hang was let go, because the run had failed in the meantime.

    A part that hangs does not come back, so its op is not carried out. The error that ended the run is another one,
    `error[ST315]` say; this one is among its notes.

        steptrace.run("grpo{staleness=1}", parts, pipeline="pipelined-boundary", stall_s=1,
                      around=[inject(Fault("pack", step=2, kind="hang"))])

    Way out: none is needed, unless the run was to hang longer: raise `stall_s`.
    """

    code = "ST654"
