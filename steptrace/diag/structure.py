"""Codes of the structural verifier: what must hold in a step before anyone asks about its order.

Here are those of a program as a whole; those of one topic stand in the modules ``structure_<topic>``, and can be
imported from here too.
"""

from __future__ import annotations

from steptrace.diag.base import SteptraceError
from steptrace.diag.structure_loops import (
    BadLoopError,
    MicroBatchConditionError,
    MicroBatchSourceError,
    NestedMicroBatchesError,
)
from steptrace.diag.structure_rollouts import (
    CommitBeforeTakeError,
    CommitTwiceError,
    DispatchWithoutTakeError,
    FreedTooEarlyError,
    MissingCommitError,
    StreamedStepEstimatorError,
    TakeWithoutDispatchError,
    TwoWeightWritersError,
    UnpublishedWeightsError,
)
from steptrace.diag.structure_training import (
    LeftoverGradientsError,
    MissingFwdBwdError,
    MissingUpdateError,
    MovedPolicyError,
    RepeatedUpdateError,
    UnappliedGradientsError,
    UpdateInMicroBatchesError,
)
from steptrace.diag.structure_values import (
    ConditionalValueError,
    NotAFlagError,
    OperandTypeError,
    OtherMicroBatchError,
    OtherStepError,
    UndefinedValueError,
    UnmadeCellError,
    UnusedResultError,
    ValueOutOfScopeError,
)

__all__ = [
    "BadConditionError",
    "BadLoopError",
    "CommitBeforeTakeError",
    "CommitTwiceError",
    "ConditionalValueError",
    "DispatchWithoutTakeError",
    "FreedTooEarlyError",
    "LeftoverGradientsError",
    "MicroBatchConditionError",
    "MicroBatchSourceError",
    "MisplacedOpError",
    "MissingCommitError",
    "MissingFwdBwdError",
    "MissingUpdateError",
    "MovedPolicyError",
    "NestedMicroBatchesError",
    "NotAFlagError",
    "OperandTypeError",
    "OtherMicroBatchError",
    "OtherStepError",
    "RepeatedUpdateError",
    "ResourcesDisagreeError",
    "StreamedStepEstimatorError",
    "TakeWithoutDispatchError",
    "TwoWeightWritersError",
    "UnappliedGradientsError",
    "UndefinedValueError",
    "UnmadeCellError",
    "UnpublishedWeightsError",
    "UnusedResultError",
    "UpdateInMicroBatchesError",
    "ValueOutOfScopeError",
]


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
