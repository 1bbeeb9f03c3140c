"""Codes of the structural verifier: each gradient reaches exactly one update, and weights leave between steps."""

from __future__ import annotations

from steptrace.diag.base import SteptraceError


class MissingFwdBwdError(SteptraceError):
    """A step computes no gradient.

    A train step accumulates gradients with ``fwd_bwd`` (one call for each micro-batch) and applies them with
    ``update``. Without ``fwd_bwd`` there is nothing to apply.

    Example::

        step k {
          update() ...
        }

    Ways out: call ``step.fwd_bwd(mb)`` in a loop over ``step.micro_batches(batch)``.
    """

    code = "ST138"


class MissingUpdateError(SteptraceError):
    """A step accumulates gradients and never applies them.

    ``fwd_bwd`` only adds to the gradient accumulator. The parameters change in ``update``, which divides by the
    total count, calls the optimizer once, and clears the accumulator.

    Example::

        for mb in step.micro_batches(batch):
            step.fwd_bwd(mb)
        step.sync_weights()                     # publishes the old weights, for ever

    Ways out: call ``step.update()`` after the loop.
    """

    code = "ST139"


class LeftoverGradientsError(SteptraceError):
    """Gradients are still in the accumulator when the step ends.

    Some ``fwd_bwd`` is followed by no ``update`` of its step, always or in some steps. Its gradients would be
    applied by the next step's update, with other weights than they were computed for.

    Example::

        step.update()
        step.fwd_bwd(mb)                        # no update follows

        with step.every(2):
            step.update()                       # in every other step the gradients stay

    Ways out: let each ``fwd_bwd`` be followed by an ``update`` under the same condition. To train on more
    samples for each update, dispatch more prompts in a step.
    """

    code = "ST140"


class RepeatedUpdateError(SteptraceError):
    """An update stands where nothing was accumulated.

    Each accumulation reaches exactly one ``update``, which clears the accumulator. A second one, or one before
    the first ``fwd_bwd``, would step the optimizer on a gradient of nothing: momentum and weight decay move the
    parameters, and the learning-rate schedule counts a step that trained nothing.

    Example::

        step.update()
        step.update()                           # nothing was accumulated in between

    Ways out: remove one of them; for several updates a step, loop over mini-batches, with a loop over
    micro-batches and an ``update`` in each.
    """

    code = "ST141"


class UpdateInMicroBatchesError(SteptraceError):
    """An update stands inside the loop over micro-batches.

    Micro-batches are parts of one batch that do not fit into memory together: their gradients are summed, and
    one update applies the sum. An update for each would train on mini-batches whose sizes depend on how the
    samples were packed.

    Example::

        for mb in step.micro_batches(batch):
            step.fwd_bwd(mb)
            step.update()                       # as many updates as micro-batches

    Ways out: move the update after the loop. For several updates on purpose, use ``step.mini_batches``; inside
    the loop an update may stand only under the condition ``last``.
    """

    code = "ST142"


class UnappliedGradientsError(SteptraceError):
    """Weights are saved or published between ``fwd_bwd`` and ``update``.

    At that point the accumulator is not empty and the parameters are still those of the step before: a
    checkpoint would resume in the middle of an accumulation, and the rollout would get the old weights under a
    new version.

    Example::

        for mb in step.micro_batches(batch):
            step.fwd_bwd(mb)
        step.sync_weights()                     # before the update
        step.update()

    Ways out: save and publish after ``update``.
    """

    code = "ST143"


class MovedPolicyError(SteptraceError):
    """Old log-probs are made after an update of their step.

    The ratio in the loss compares the policy as it is now with the one that sampled. ``old_logps`` computes the latter
    with the parameters as they are, which is right until the step's first update. After it, a mini-batch would be
    compared with a policy that never sampled anything: the ratio is 1 wherever it is computed, and clipping does
    nothing.

    Example::

        for part in step.mini_batches(scored, 4):
            for mb in step.micro_batches(step.pack(part)):
                step.fwd_bwd(step.old_logps(mb))    # from the second part on, after an update
            step.update()

    Ways out: use the log-probs that came with the rollout (no ``old_logps`` at all; the loss finds ``rollout_logps``);
    or update once in the step.
    """

    code = "ST160"


class DenominatorError(SteptraceError):
    """The denominator of the gradient is decided twice, or used other than once.

    Training calls add un-normalised sums and a count to the accumulator, and the update divides the one by the other.
    If an op divides as well, in each micro-batch or before the update, the gradient is too small by that factor, and
    the loss curve looks normal. So the count has one op that adds to it and one that divides by it.

    Example::

        @steptrace.op(reads=["grads.sums", "grads.count"], writes=["grads.sums"])
        def mean(): ...

        for mb in step.micro_batches(batch):
            step.fwd_bwd(mb)
        mean()                                  # divides
        step.update()                           # divides again

    Ways out: leave the division to the update; or bring an update of your own that reads ``grads.sums`` and not
    ``grads.count``. An op that scales by something else (clips, averages over ranks) names ``grads.sums`` only, or all
    of ``grads``. Reading the count to report it is no use of it.
    """

    code = "ST161"
