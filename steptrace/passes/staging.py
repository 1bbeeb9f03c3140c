"""What both staging passes share: the next step's first micro-batch is split into its shipping and its training."""

from __future__ import annotations

from steptrace.check.settle_law import ATTEMPT
from steptrace.check.units import units_of
from steptrace.check.values import makers_of
from steptrace.diag.base import SteptraceError
from steptrace.diag.motion import PassDeclinedError
from steptrace.ir.program import Op
from steptrace.motion import Schedule, rotate, split
from steptrace.passes.base import declined
from steptrace.passes.roles import feeding, first_calls, leaving, trained_units, training_loop, used_by
from steptrace.passes.room import chains_to, no_room, stays_written
from steptrace.passes.take_ahead import TakeAhead


def check_packed_ahead(schedule: Schedule) -> Op:
    """The training call on the first micro-batch, which is packed while the step before still trains.

    Raises:
      PassDeclinedError: there is no such call, it was split already, or nothing is packed ahead.
    """
    program = schedule.program
    loop = training_loop(program)
    calls = first_calls(program)
    if not calls:
        message = f"the first micro-batch of `{loop.id}` runs inside the loop, so there is none to ship ahead"
        raise declined(message, loc=loop.loc, help=_way_to_pack_ahead(schedule))
    if len(calls) > 1 or (calls[0].origin and calls[0].origin.part not in ("", ATTEMPT)):
        raise declined(f"`{calls[0].id}` is shipped ahead already", loc=calls[0].loc)
    makers = makers_of(units_of(program))
    for use in calls[0].args:
        for maker in makers.get(use.name, ()):
            made = maker.node
            if isinstance(made, Op) and made.shift < 1:
                raise _not_ahead(schedule, made, calls[0])
    return calls[0]


def _way_to_pack_ahead(schedule: Schedule) -> str:
    """How a first micro-batch gets packed ahead: by `take-ahead`, or by what that pass lacks itself."""
    try:
        TakeAhead().run(schedule)
    except SteptraceError as error:
        return f"`take-ahead` comes first, and is refused here; {error.help or error.message}"
    return "put `take-ahead` before this pass"


def _not_ahead(schedule: Schedule, made: Op, call: Op) -> PassDeclinedError:
    """Why the first micro-batch is not packed ahead: its maker waits for the step before, or nobody asked for it."""
    reference = schedule.reference
    fed = feeding(reference.body, used_by((call,)))
    sources = trained_units(reference, fed)
    if made.id in chains_to(reference, sources, 1):
        what = "the first micro-batch cannot be shipped ahead"
        return no_room(reference, what, made.id, sources, [op.id for op in fed], 1)
    marks = [id for id in leaving(reference, fed) if id == made.id or made.id in chains_to(reference, (id,), 0)]
    if marks:
        return stays_written(reference, f"the first micro-batch cannot be shipped ahead of `{marks[0]}`", marks[0])
    message = f"`{made.id}` makes the first micro-batch in its own step, so nothing could be shipped ahead"
    return declined(message, loc=made.loc, help="put `take-ahead` before this pass")


def staged(schedule: Schedule, call: Op, above: str) -> Schedule:
    """The schedule with the call split by the law `stage`, and the next step's micro-batch shipped above an op."""
    done = split(schedule, call.id, law="stage")
    return rotate(done.schedule, done.forwarding[call.id][0], above=above).schedule
