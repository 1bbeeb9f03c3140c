"""Codes of the structural verifier: what must hold in a step before anyone asks about its order."""

from __future__ import annotations

from steptrace.diag.base import SteptraceError


class UndefinedValueError(SteptraceError):
    """An op reads a value that no op before it makes.

    Ops hand values to one another by name. A value exists from the op that makes it on; in program order, an op
    cannot read what a later op of the same step makes.

    Example::

        update() ...
        log(%metrics) ...                       # get_metrics() would have made %metrics

    Ways out: add the op that makes the value, move it up, or correct the name.
    """

    code = "ST130"


class ValueOutOfScopeError(SteptraceError):
    """A value is used where it does not exist: outside the loop that makes it, or after the last step.

    A loop's body makes its values anew in each round. After the loop there is no one micro-batch that
    ``%mb`` could mean. Likewise what a step makes belongs to that step.

    Example::

        loop micro_batches: m in %batch {
          %mb : micro_batch<advantages, rewards>, %last : flag = next_mb(%batch) ...
        }
        fwd_bwd(%mb) ...                        # which micro-batch?

    Ways out: move the op into the loop; declare a ``carry`` for what the next step, or the end, shall see.
    """

    code = "ST131"


class OtherStepError(SteptraceError):
    """A value of another step is used and no carry hands it over.

    ``%name@k-1`` is the value that the previous step made. Before step 0 there is none, so a ``carry`` line says
    what step 0 sees, and exactly one op of the step, outside loops and conditions, makes the value.

    Example::

        carry %kl_coef = 0.1
        step k {
          %kl_coef : scalar = adapt(%metrics) ...
          penalty(%kl_coef@k-2) ...             # a carry reaches back one step
        }

    Ways out: declare ``carry %name = ...`` and let an op of the step make ``%name``; read it as ``@k-1``.
    """

    code = "ST132"


class OtherMicroBatchError(SteptraceError):
    """A value of another micro-batch is used where there is none.

    ``%name@m-1`` is what the round before made. It has a meaning only inside the ``micro_batches`` loop that
    makes ``%name``, and a later round has made nothing yet.

    Example::

        update() ...
        report(%loss@m-1) ...                   # no micro-batch is being trained here

    Ways out: use it inside the loop, with a negative distance.
    """

    code = "ST133"


class OperandTypeError(SteptraceError):
    """A value is not what the op takes, or lacks a field that the op reads.

    Types record what was added to the data so far. ``fwd_bwd`` multiplies log-probs with advantages: without an
    op that made ``advantages`` before it, the loss would be computed from nothing, or from a stale field.

    Example::

        %groups : groups, %exists : flag = take() ...
        %batch : batch = pack(%groups) ...      # `pack` reads `advantages`, which no op before it has made

    Ways out: put the op that makes the field before it (``reward``, then ``advantages``, then ``pack``), and
    pass on its result, not the value from before.
    """

    code = "ST134"


class NotAFlagError(SteptraceError):
    """A condition names a value that is not a flag.

    An op runs when a flag is true. Numbers, metrics and batches are neither true nor false.

    Example::

        save_checkpoint() lane=host when(%metrics) ...

    Ways out: let an op make a ``flag`` out of the value.
    """

    code = "ST135"


class ConditionalValueError(SteptraceError):
    """A value that is made only under a condition is used without that condition.

    In steps where the condition is false, the value would not exist.

    Example::

        %metrics : metrics = get_metrics() lane=host when(every 10) ...
        log(%metrics) lane=host ...             # in nine steps of ten there are no metrics

    Ways out: put the use under the same condition, or make the value always.
    """

    code = "ST136"


class UnusedResultError(SteptraceError):
    """An op only computes a result, and nobody uses the result.

    Values are never changed in place: ``step.ref_logps(mb)`` returns a new micro-batch that has the reference
    log-probs, and leaves ``mb`` as it was. When the result is not assigned, the op has no effect at all.

    Example::

        for mb in step.micro_batches(batch):
            step.ref_logps(mb)                  # the result is thrown away
            step.fwd_bwd(mb)

    Ways out: assign it back, ``mb = step.ref_logps(mb)``; or remove the op.
    """

    code = "ST137"


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


class MicroBatchSourceError(SteptraceError):
    """A loop over micro-batches does not start with exactly one op that makes its micro-batch.

    The first op of each round hands out the round's micro-batch: ``next_mb`` of the packed batch that the loop
    runs over, or ``stream_mb`` in a loop over a stream. It runs once a round, unconditionally, and nowhere else.
    The same holds for ``next_part`` and loops over mini-batches.

    Example::

        loop micro_batches: m in %batch {
          fwd_bwd(%mb) ...                      # no micro-batch was made
        }

    Ways out: start the body with ``next_mb(%batch)``; in Python, ``for mb in step.micro_batches(batch):`` does so.
    """

    code = "ST153"


class NestedMicroBatchesError(SteptraceError):
    """A loop over micro-batches stands inside another.

    Micro-batches are the smallest parts: what fits into memory in one forward and backward. Inside one there are
    no further micro-batches.

    Example::

        loop micro_batches: m in %batch {
          loop micro_batches inner: n in %batch {
          }
        }

    Ways out: use ``repeat`` for epochs and ``mini_batches`` for several updates, outside the loop over
    micro-batches.
    """

    code = "ST154"


class BadLoopError(SteptraceError):
    """A loop is empty, or does not say how often it runs.

    Example::

        loop repeat: e times 0 {
        }

    Ways out: give ``repeat`` and ``mini_batches`` a count of at least 1, and each loop a body.
    """

    code = "ST155"


class MicroBatchConditionError(SteptraceError):
    """A condition about micro-batches stands where there is no micro-batch.

    ``first``, ``last`` and ``m == 2`` speak of the round of the loop over micro-batches around the op.

    Example::

        update() lane=host when(last) ...       # outside the loop

    Ways out: move the op into the loop; for conditions on the step use ``every n`` or a flag.
    """

    code = "ST156"


class BadConditionError(SteptraceError):
    """A condition can have no meaning.

    A period is at least 1 and a micro-batch is counted from 0; ``and`` and ``or`` join two conditions or more.

    Example::

        save_checkpoint() lane=host when(every 0) ...

    Ways out: ``every 1`` is every step.
    """

    code = "ST157"


class ResourcesDisagreeError(SteptraceError):
    """The declared resources are not those that the ops touch.

    Each resource that an op names in its effects is declared once, with its kind, and no other. A missing
    declaration hides state; one too many promises an order that no op keeps.

    Example::

        resource scratch : state                # no op reads or writes it

    Ways out: add or remove the line; in Python, declare a resource of your own with ``steptrace.resource``.
    """

    code = "ST158"


class MisplacedOpError(SteptraceError):
    """An op that belongs to a step stands before the first or after the last.

    Dispatch, take, gradients, update and commit are counted step by step. Before step 0 stands what runs once,
    such as the initial ``sync_weights``.

    Example::

        before {
          commit() ...
        }

    Ways out: move the op into ``step k``.
    """

    code = "ST159"


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
    or make all of them before the first update.
    """

    code = "ST160"
