"""The motion ``relax``: the contract allows more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from types import MappingProxyType

from steptrace.diag.motion import RelaxError
from steptrace.ir.program import Contract, Program
from steptrace.ir.types import AttrValue
from steptrace.motion.proof import Call, rewritten
from steptrace.motion.schedule import Moved, Schedule

_LOOSER: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "weights": ("pinned", "freshest"),
        "saves": ("before_sync", "may_fail_late"),
        "logs": ("before_callbacks", "may_fail_late"),
    }
)
"""The values of a clause, each looser than the one before."""


def relax(schedule: Schedule, **clauses: str | int) -> Moved:
    """Loosens the contract: what the source is changes with it, and every later proof is against the relaxed source.

    ``contract staleness=0  -->  contract staleness=1``   for ``relax(schedule, staleness=1)``

    This is the one motion that changes what is trained. With staleness 1, step k's rollouts are made with the weights
    that step k-2 published, not step k-1.

    Refused when a clause would become stricter, or is none that can be loosened.

    Args:
      schedule: the schedule.
      **clauses: ``staleness`` (a number of updates), ``weights="freshest"``, ``saves="may_fail_late"``,
        ``logs="may_fail_late"``.

    Raises:
      RelaxError: as above.
    """
    contract = schedule.program.contract
    for name, value in clauses.items():
        _check(schedule.program, contract, name, value)
    if not clauses:
        raise RelaxError("no clause to relax is given", loc=schedule.program.loc)
    relaxed = replace(contract, **clauses)  # type: ignore[arg-type]
    source, reference, program = (
        replace(one, contract=relaxed) for one in (schedule.source, schedule.reference, schedule.program)
    )
    changes = ", ".join(f"{name} {getattr(contract, name)} -> {value}" for name, value in clauses.items())
    call = Call("relax", (), tuple(clauses.items()))
    return rewritten(
        schedule,
        program,
        reference,
        call,
        f"the contract allows more: {changes}",
        class_="contract",
        how="contract",
        source=source,
    )


def _check(program: Program, contract: Contract, name: str, value: AttrValue) -> None:
    known = {field.name for field in fields(Contract)}
    if name == "staleness":
        if type(value) is not int or value <= contract.staleness:
            message = f"staleness={value!r} does not relax staleness={contract.staleness}"
            raise RelaxError(message, loc=program.loc, help="give a larger whole number of updates")
        return
    order = _LOOSER.get(name, ())
    if name not in known or not order:
        clauses = ", ".join(["staleness", *(one for one in _LOOSER if one in known)])
        raise RelaxError(f"`{name}` is no clause that can be relaxed", loc=program.loc, help=f"clauses: {clauses}")
    now = getattr(contract, name)
    if value not in order or order.index(str(value)) <= order.index(now):
        raise RelaxError(f"{name}={value!r} does not relax {name}={now!r}", loc=program.loc)
