"""Codes of the structural verifier: what is dispatched, taken, published, committed and freed."""

from __future__ import annotations

from steptrace.diag.base import SteptraceError


class UnpublishedWeightsError(SteptraceError):
    """Rollouts are generated with weights that nobody published.

    With pinned weights, step k generates with what step k-1-staleness published, and the first steps with what
    was published before step 0. Without the initial ``sync_weights`` the rollout engine would sample from
    whatever it was started with; without one in the step it would wait for ever, or use old weights.

    Example::

        before {
        }
        step k {
          dispatch() ...                        # in step 0: whose weights?
        }

    Ways out: publish once in ``before`` and once in each step, under no condition. A step that publishes only
    now and then is a program with ``weights=freshest``.
    """

    code = "ST144"


class TwoWeightWritersError(SteptraceError):
    """Two ops of a step publish weights to the rollout.

    A version names one content. If two ops write ``rollout.weights[k]``, what the rollouts are made with
    depends on which came last: for instance an engine that reloads its weights on waking up, after the sync.

    Example::

        step.sync_weights()
        wake_engine()                           # declared with writes=["rollout.weights[k]"]

    Ways out: keep one writer for each version; let the other op write something else than the weights.
    """

    code = "ST145"


class TakeWithoutDispatchError(SteptraceError):
    """A step takes groups that no step dispatches.

    ``take`` waits for the groups of its step. If nothing asked for them, it waits for ever.

    Example::

        groups = step.take()                    # and no step.dispatch(...)

    Ways out: dispatch as often as you take, under the same conditions.
    """

    code = "ST146"


class DispatchWithoutTakeError(SteptraceError):
    """A step dispatches generation, and nobody takes the groups.

    The groups would pile up in the queue and never be trained on.

    Example::

        step.dispatch(prompts=32, samples=8)    # and no step.take()

    Ways out: take as often as you dispatch, under the same conditions; or stream the groups.
    """

    code = "ST147"


class MissingCommitError(SteptraceError):
    """A step takes groups and never commits them.

    ``commit`` moves the training cursor past the step's groups. Without it a resumed run trains them again, and
    generation that waits for the cursor stops.

    Example::

        groups = step.take()
        ...                                     # no step.commit()

    Ways out: call ``step.commit()`` once, after the update and the checkpoint.
    """

    code = "ST148"


class CommitTwiceError(SteptraceError):
    """A step commits more than once.

    Each commit moves the training cursor by one step's groups. The second would mark groups as trained that no
    step has trained, and a resumed run would skip them.

    Example::

        step.commit()
        step.commit()

    Ways out: remove one; put it outside the loops of the step.
    """

    code = "ST149"


class CommitBeforeTakeError(SteptraceError):
    """A step commits groups before it has taken them.

    A crash between the two would lose the groups: they count as trained, and were not even taken.

    Example::

        step.commit()
        groups = step.take()

    Ways out: commit after the groups were trained on.
    """

    code = "ST150"


class FreedTooEarlyError(SteptraceError):
    """The host memory of the step is released before its last reader.

    ``free`` releases the step's groups and micro-batches. Whoever reads them later reads released memory.

    Example::

        free() ...
        log(%metrics) ...                       # reads the step's groups for its tables

    Ways out: move ``free`` to the end of the step.
    """

    code = "ST151"


class StreamedStepEstimatorError(SteptraceError):
    """An advantage estimator that looks at the whole step is used on a part of it.

    ``grpo``, ``dr_grpo`` and ``rloo`` compare the completions of one prompt with one another, so a group can be
    trained on as soon as it arrives. ``reinforce_pp`` subtracts a mean over all groups of the step: it needs
    every group before the first advantage is known.

    Example::

        for mb in step.micro_batches(step.stream(estimator="reinforce_pp")):
            ...

    Ways out: take the whole step first (``take``, ``reward``, ``advantages``, ``pack``); or use an estimator
    that looks at one group.
    """

    code = "ST152"
