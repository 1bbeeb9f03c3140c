"""Codes ST638-ST639: parts that live in processes of their own."""

from __future__ import annotations

from steptrace.diag.base import SteptraceError


class LocalPartError(SteptraceError):
    """The target `process` runs this part in a process of its own, and it is bound to an object of this one.

    A process makes its own trainer, rollout or reference: it cannot be given one that holds arrays here. So they are
    bound to what makes them, an importable function or class and its arguments.

        bind = {"trainer": JaxTrainer(model, optimizer, loss), ...}
        steptrace.run("grpo", bind, steps=10, target="process")      # error[ST638]

    Way out:

        def make_trainer(width):
            return JaxTrainer(Model(width), optax.adam(1e-3), GrpoLoss())

        bind = {"trainer": steptrace.remote(make_trainer, 64), ...}

    The same bind runs on `inline` too, where the parts are made in this process.
    """

    code = "ST638"


class AfterFailureError(SteptraceError):
    """A call came behind one that has failed, and was not carried out.

    Training calls are sent to the trainer's process one after another, and a failure is known a little later. What was
    sent behind the call that failed would train on half a step, so the process refuses it. The run ends with the
    failure itself; this error is seen only where a call is made after that.

    For example `fwd_bwd` of micro-batch 2 raises in its process while those of 3 and 4 are on their way: both get this.

    Ways out: see the failure; start a run anew, or resume it, which clears this.
    """

    code = "ST639"
