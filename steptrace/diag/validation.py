"""Codes of validation: a schedule was run beside its source, and a run was found in which they differ."""

from __future__ import annotations

from steptrace.diag.base import SteptraceError


class NotASourceError(SteptraceError):
    """A schedule is to be compared with a program that is itself a schedule.

    Validation pairs each op of a schedule with the op of the source program that it stands for. A program whose ops
    were moved, peeled or split has no such ops to offer.

    Example::

        steptrace check async.st --against pipelined.st      # both came from grpo

    Ways out: compare each with the program that it came from.
    """

    code = "ST250"


class CoverageError(SteptraceError):
    """An op of the source runs too often, not at all, or for a step that may not exist.

    Every instance of every op of the source must run exactly once, whatever the number of steps, the numbers of
    micro-batches and the flags: also in runs shorter than the schedule is deep, and when the data ends. What belongs
    to a step waits until its take knows that the step exists.

    Example::

        next_mb.first: ... = next_mb(%batch) lane=host at(m=0) from=next_mb ...
        loop micro_batches: m in %batch {       # without `from 1`: micro-batch 0 runs twice
          ...

    Ways out: peel, shift and split by motions, which keep the count; give the arms of a choice exclusive conditions.
    """

    code = "ST251"


class DeadlockError(SteptraceError):
    """A schedule hangs: each lane waits for an instance that stands behind a waiting one.

    Lanes run their ops one after the other. Between lanes, what touches the same cell keeps the order of the source,
    and a value is made before it is used. If that closes a ring, nothing in it can ever run.

    Example::

        %batch.2 : ... = pack(...) lane=packer shift=+1 ...   # needs what host makes later
        sync_weights() lane=host ...
        dispatch() lane=packer shift=+1 ...                   # staleness 0: waits for that sync

    Ways out: move one of the named ops down its lane, or to another lane; allow more staleness.
    """

    code = "ST252"


class TranslationError(SteptraceError):
    """A schedule computes something else than its source.

    Source and schedule were run with nothing assumed about the ops but their operands, effects and attributes. Some
    channel, published weights or parameters ended differently, so there are ops that would show it.

    Example::

        save_checkpoint() ...                   # before apply_deferred_update(): the checkpoint is one update old
        apply_deferred_update() ...

    Ways out: the counterexample names the first op that reads what it would not read in the source; move it back.
    """

    code = "ST253"


class FailureOrderError(SteptraceError):
    """After a failure, a schedule leaves something behind that the source would not.

    When an op fails, the run ends. In the source nothing after it has run. In a schedule, work of later steps may have
    run, as long as it is dropped: calls that were sent, groups that were taken. A later update, checkpoint, weight
    sync, commit, log line or callback may not.

    Example::

        on_step_end() ...                       # the callback hears of a step
        save_checkpoint() ...                   # whose checkpoint then fails

    Ways out: keep the op behind those that may fail; for a checkpoint written late, declare ``saves=may_fail_late``,
    for a log on a lane of its own ``logs=may_fail_late``.
    """

    code = "ST254"


class CrashCutError(SteptraceError):
    """A run that is cut off at some point cannot be resumed from what it leaves on disk.

    A resumed run starts from the last checkpoint, one step after the one it was saved in, and takes later groups again.
    Together, every group must be trained exactly once.

    Example::

        save_checkpoint() ...                   # holds step k, but not the update of step k
        update() ...

    Ways out: save after the update of the step; commit after the save.
    """

    code = "ST255"


class OtherContractError(SteptraceError):
    """A schedule and its source are held to different contracts, so they cannot be equal.

    The contract is part of what a program means: with another staleness, other weights generate.

    Example::

        steptrace check pipelined.st --against grpo          # traced with staleness=1, and with staleness=0

    Ways out: compare with the source under the contract that the schedule was derived for, ``grpo{staleness=1}``.
    """

    code = "ST256"


class RoomError(SteptraceError):
    """A run needs more places at a time than a resource has.

    A resource with a capacity is a ring of cells, a queue, or a pool of cells: the op that needs one more waits until
    one is given back. If it is given back only by something behind that op, the run stands still.

    Example::

        snapshot_checkpoint() ...               # takes one of `trainer.copies : slot(1)`
        copy_weights() ...                      # needs one too
        write_checkpoint() ...                  # and only this gives the first back

    Ways out: more room; move what gives the place back in front of what takes the next one, or to another lane.
    """

    code = "ST257"
