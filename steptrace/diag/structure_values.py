"""Codes of the structural verifier: values, where they exist and what they are."""

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


class UnmadeCellError(SteptraceError):
    """An op reads what its own step leaves in a resource, and only an op below it writes that.

    A resource with a cell for each step, ``policy.version[k]``, is written once a step; whoever reads the cell of step
    k stands below the op of step k that writes it. Above it, there would be nothing to read.

    Asked of a program as it is written. Of a schedule the same follows from the comparison with its source.

    Example::

        step.commit()                           # stamps the step's groups with policy.version[k]
        step.sync_weights()                     # makes policy.version[k]

    Ways out: move the reader below the writer; or read the cell of the step before, ``notes.mean[k-1]``, if that is
    what is meant.
    """

    code = "ST162"
