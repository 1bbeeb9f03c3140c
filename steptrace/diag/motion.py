"""Codes ST280-ST291: motions that were asked for in a way that means nothing, pipelines, and passes that fail."""

from __future__ import annotations

from steptrace.diag.base import SteptraceError


class PlaceError(SteptraceError):
    """A motion names a place that its ops cannot stand at.

    Ops of the step move within the step, ops of a loop over micro-batches within that loop. A loop over epochs or
    mini-batches is moved as a whole: nothing moves into it or out of it.

    Example::

        hoist(schedule, "log", above="fwd_bwd")     # fwd_bwd stands in the loop over micro-batches

    Ways out: name a neighbour that stands beside the op (the loop itself, say); ``peel`` the loop to have its first
    micro-batch outside.
    """

    code = "ST280"


class MotionArgumentError(SteptraceError):
    """An argument of a motion makes no sense.

    Example::

        rotate(schedule, "take", ahead=0)           # rotates nothing

    Ways out: the message says what is allowed.
    """

    code = "ST281"


class GuardError(SteptraceError):
    """An op cannot be made to run early under a condition.

    A guard makes two arms of the training call on a peeled micro-batch: one runs early if the micro-batch is packed by
    then, the other one in the op's place if it was not. Other ops have no such arms.

    Example::

        guard(schedule, "log")                      # log waits for no micro-batch

    Ways out: peel the loop over micro-batches, and guard the first training call.
    """

    code = "ST282"


class PassDeclinedError(SteptraceError):
    """A pass finds nothing here that it could do, or nothing that doing it would gain.

    The schedule is left as it was. The remark names what is missing or which edge leaves no room: `take-ahead` has
    nothing to gain, for one, where the groups of the next step are sampled with weights that this step publishes.

    Example::

        steptrace opt grpo -p take-ahead            # staleness 0: step k+1 is sampled after sync_weights of step k

    Ways out: the remark names the declaration that would make room (``grpo{staleness=1}``), or leave the pass out.
    """

    code = "ST283"


class PipelineSyntaxError(SteptraceError):
    """The text of a pipeline cannot be read.

    A pipeline is a list of passes with commas between them, each with its options in braces.

    Example::

        steptrace opt grpo -p "take-ahead{depth=1"  # the brace is never closed

    Ways out: write ``take-ahead{depth=1},defer-metrics``; quote it, since shells read braces too.
    """

    code = "ST284"


class PassOptionError(SteptraceError):
    """A pass has no such option, or not with such a value.

    Example::

        steptrace opt grpo -p "take-ahead{dept=1}"

    Ways out: the message lists the options with their types and defaults.
    """

    code = "ST285"


class BrokenPassError(SteptraceError):
    """A pass left a schedule that is not equal to its source. This is a bug in the pass, not in the program.

    Passes are not trusted: after each, the schedule is verified. What was wrong with it stands in the message, and
    it is not used.

    Example::

        schedule = BrokenPass().run(schedule)       # swaps two ops without a motion

    Ways out: build passes of motions only, which refuse what is not equal; leave the pass out until it is mended.
    """

    code = "ST286"


class PassCrashError(SteptraceError):
    """A pass failed with an exception that is no refusal. This is a bug in the pass, not in the program.

    Example::

        steptrace opt job.st -p my-pass             # KeyError inside my-pass

    Ways out: leave the pass out; the reproducer holds the program as the pass got it, and the pass with its options.
    """

    code = "ST287"


class RelaxError(SteptraceError):
    """A contract cannot be changed this way.

    ``relax`` loosens what must stay exact: more staleness, the newest weights instead of pinned ones. It does not
    tighten, and it knows the clauses of the contract only.

    Example::

        relax(schedule, staleness=0)                # the program allows 1 already

    Ways out: trace the program with the contract that you want.
    """

    code = "ST288"


class FuseError(SteptraceError):
    """The parts of an op cannot be joined where they stand.

    ``fuse`` puts the parts that a law made back into one op, at the place of the first of them. They must all be there,
    on one lane, for the same step, and no op in between may touch what they touch.

    Example::

        fuse(schedule, "start_metrics", law="start-fetch")   # save_checkpoint stands between start and fetch

    Ways out: move the op in between out of the way first.
    """

    code = "ST289"


class LiveOpError(SteptraceError):
    """An op that is to be left out has something to show.

    Only what nobody sees may be dropped: the values of the op are used by no op that is kept, and no op that is kept
    reads what it writes. Built-in resources and channels are seen from outside, and an op without declared effects may
    look at everything.

    Example::

        drop(schedule, "ref_logps")                 # fwd_bwd uses its micro-batch

    Ways out: take the op out of the step, and trace it anew.
    """

    code = "ST290"


class MemoryBudgetError(SteptraceError):
    """A schedule needs more copies of the parameters at a time than the memory budget has room for.

    A weight sync that goes on while the next step trains holds a copy of the parameters, and so does a checkpoint that
    is written meanwhile. `memory-budget` lets one wait for the other; where the order of the ops leaves no room for
    that, or not even one copy fits, it declines.

    Example::

        steptrace opt grpo -p "async-weight-sync,memory-budget{copies=0.5}"     # the sync holds a whole copy

    Ways out: a larger budget; leave out `async-weight-sync` or `async-checkpoint`; bring the op that gives the first
    copy up in front of the one that makes the second.
    """

    code = "ST291"


class RingTooSmallError(SteptraceError):
    """A schedule has more micro-batches in use at a time than the ring of buffers has room for.

    A micro-batch that is handed out takes a buffer, and gives it back once the last call that reads it is done. A
    schedule that prepares the next micro-batch before it trains this one needs two at a time: with one, the next waits
    for a buffer, and the call that would free it stands behind the next on the same lane.

    Example::

        steptrace opt grpo -p "pipeline-micro-batches,release-buffers{ring=3}"     # one in the loop, two before it

    Ways out: a larger ring, of the size that the message names; leave out the pass that prepares ahead.
    """

    code = "ST292"
