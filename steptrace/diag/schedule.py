"""Codes of schedules: what a derived schedule must keep of its source, and what stands in the way."""

from __future__ import annotations

from steptrace.diag.base import SteptraceError


class MissingOpError(SteptraceError):
    """An op of the source does not run in the schedule.

    A schedule says when the ops of a step run; each still runs once for every step, and once for every micro-batch
    if it stands in the loop over micro-batches.

    Example::

        step k {                                # the source has update() after the loop
          loop micro_batches: m in %batch { ... fwd_bwd(%mb) ... }
          sync_weights() ...                    # publishes weights that were never updated
        }

    Ways out: put the op back; if a law has split or joined it, give all its parts.
    """

    code = "ST200"


class DoubledOpError(SteptraceError):
    """An op of the source runs twice in an instance of the schedule.

    Ops of one origin may appear more than once only as the parts of a law, or as a first micro-batch taken out of
    the loop together with a loop that starts after it.

    Example::

        update() ...
        update.2: update() from=update ...      # a second update on the same gradients

    Ways out: remove one of them.
    """

    code = "ST201"


class ForeignOpError(SteptraceError):
    """An op of the schedule stands for nothing in the source.

    Each op carries its origin (``from=``): the op of the source that it is, or is a part of. An op whose origin the
    source does not have would do something that the plain step never did.

    Example::

        old_logps() ...                         # the source computes none

    Ways out: remove the op, or add it to the step that the schedule is derived from.
    """

    code = "ST202"


class ChangedOpError(SteptraceError):
    """An op of the schedule is not what it is in the source.

    A schedule changes when ops run and what issues them. What an op does (its kind, attributes, operands, results
    and condition) stays as the step says.

    Example::

        dispatch() {prompts=64, samples=8} ...  # the source dispatches 32 prompts

    Ways out: undo the change, or make it in the step and derive the schedule anew.
    """

    code = "ST203"


class OrderError(SteptraceError):
    """The schedule runs two ops in an order that changes what is trained, saved or seen.

    Ops that touch the same state, with one of them writing it, must keep the order of the plain step, and so must
    an op that makes a value and those that use it. The message names two instances in the wrong order; below it
    stand the reason, how far the order is off, and where the op could stand instead.

    Example::

        fwd_bwd(%mb) ...                        # reads the parameters
        sync_weights() ...                      # publishes them
        update() ...                            # too late: step k's weights are published before its update

    Ways out: put the op where the message says that it is legal. If it says that a declaration would allow the
    order (``staleness=1``: rollouts may be made with weights that are one update older), declare that in the
    program; it changes what the program trains, so no pass does it by itself.
    """

    code = "ST204"


class DeadlockError(SteptraceError):
    """The lanes would wait for one another for ever.

    A lane runs its ops one after the other, and waits where an op needs something from another lane. Here these
    waits form a circle: each op in it cannot begin before the one above it, so none of them ever begins. The message
    lists the circle.

    Example::

        lane host:   log, then update
        lane packer: pack, then fwd_bwd         # update waits for fwd_bwd, pack waits for log

    Ways out: move one op of the circle past its neighbour on the same lane, or to a lane of its own.
    """

    code = "ST205"


class CapacityError(SteptraceError):
    """The schedule would need more room than the program declares.

    A resource such as ``host : cell(2)`` holds that many steps at a time. The schedule starts on the next one before
    the oldest is released, and the release waits, directly or not, for what was started.

    Example::

        resource host : cell(1)                 # the host memory of one step
        take() ... shift=+1                     # takes the groups of the next step before this one is freed

    Ways out: take less far ahead, free earlier, or give the resource more room (it costs that much memory).
    """

    code = "ST206"


class HoldUpError(SteptraceError):
    """A take that has to wait for data would hold up the step before it.

    The groups of a later step may not be there for a long time: they are still being generated. An op that waits
    for them on a lane where work of an earlier step comes next keeps that work waiting too (its checkpoint, its
    metrics, the weights that others wait for).

    Example::

        take() lane=host shift=+1 ...           # waits for step k+1's groups
        save_checkpoint() lane=host ...         # step k's checkpoint waits behind it

    Ways out: let another lane take ahead (``lane=packer``), or move the take behind the last op of the earlier step.
    """

    code = "ST207"


class NegativeShiftError(SteptraceError):
    """An op runs behind its place, so the last steps would miss it.

    A shift says how many steps (in the loop: micro-batches) ahead of its place an op runs. A schedule begins
    early enough for every shift ahead; behind, it would end before the op's last instance.

    Example::

        log(%metrics) shift=-1 ...              # after the last step nothing runs it any more

    Ways out: give the other ops one more instead, and this one ``shift=0``.
    """

    code = "ST208"


class DeclarationChangedError(SteptraceError):
    """The schedule declares something else than its source.

    Contract, carries, parameters and resources belong to the step. A schedule of another contract (a larger
    staleness, say) is a schedule of another program, even if the ops are the same.

    Example::

        contract weights=pinned staleness=1     # the source was traced with staleness=0

    Ways out: compare with the source that has the same declarations (``grpo{staleness=1}``).
    """

    code = "ST209"


class LawError(SteptraceError):
    """An op cannot be split, joined or held back this way here.

    A law replaces an op by parts that do the same together: ``sync_weights`` is a copy, a transfer and an apply.
    Each has conditions. Joining the update with the last training call, for one, needs that nothing between the two
    sees the parameters or the gradients.

    Example::

        loop micro_batches: m in %batch { ... fwd_bwd(%mb) ... }
        grad_norms() {reads=("grads")} ...      # sees the gradients before the update
        update() ...                            # so the last fwd_bwd cannot do the update too

    Ways out: the message names the condition. Move the op in between away, or leave the op whole.
    """

    code = "ST210"


class PeelError(SteptraceError):
    """The first micro-batch of a loop cannot be taken out of it.

    Peeling writes the ops of the loop's first round once more before the loop, which then starts with the second.
    It works on a loop over micro-batches that stands directly in the step, holds only ops, and does not look back at
    the micro-batch before.

    Example::

        loop mini_batches: j in %advantaged times 4 {
          loop micro_batches: m in %batch { ... }   # starts four times a step
        }

    Ways out: the message names the condition.
    """

    code = "ST211"


class UnknownLawError(SteptraceError):
    """No law has this name, or it is not one for this op.

    Example::

        split(schedule, "log", law="start-fetch")    # `start-fetch` splits get_metrics

    Ways out: the message lists the laws that the op has.
    """

    code = "ST212"


class LoopLanesError(SteptraceError):
    """A loop over epochs or mini-batches is spread over several lanes.

    Such a loop is scheduled as one piece, so one lane issues all of it.

    Example::

        loop repeat: e times 2 {
          next_part(...) lane=host ...
          pack(...) lane=packer ...
        }

    Ways out: give its ops one lane.
    """

    code = "ST213"


class UnorderedError(SteptraceError):
    """Nothing orders the two ops.

    ``why PROGRAM A before B`` shows the chain of reasons for which A of a step comes before B of the same or a later
    step. Where there is no such chain, but one from B to A, that one is shown. Where there is neither, a schedule may
    run the two in any order, or at once.

    Example::

        steptrace why grpo log before save_checkpoint

    Ways out: ask the other way round; or declare what the ops read and write, if there should be an order.
    """

    code = "ST214"


class UnknownOpError(SteptraceError):
    """The program has no op of this name.

    Ops are named by their id, as the dump shows it in front of the parenthesis (or before the colon).

    Example::

        steptrace why grpo train before sync_weights      # the training call is called fwd_bwd

    Ways out: look at ``steptrace dump PROGRAM --view=nest``.
    """

    code = "ST215"


class UnknownSourceError(SteptraceError):
    """A schedule is to be run, and the program that it was derived from is not known.

    The text of a schedule says what runs when, and not why that is right: it is compared with its source first, and run
    only when it is equal. The source of a built-in program is found by the name, the parameters and the contract that
    the text begins with. A program of your own is not: the text does not say in which module it is.

    Example::

        steptrace opt my_job:my_step -p pipelined-boundary -o fast.st
        steptrace run fast.st

    Ways out: name the source, ``steptrace run fast.st --against=my_job:my_step``, or in Python
    ``steptrace.run("fast.st", parts, against=my_step, ...)``; or run the source with the pipeline.
    """

    code = "ST216"
