"""The arrays that the trainer's loss reads, against those that the micro-batches of the program have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from steptrace.diag.base import Note
from steptrace.diag.training import MissingArrayError
from steptrace.lower import Plan


def check_arrays(plan: Plan, trainer: Any) -> None:
    """Refuse a loss that reads what no op of the program adds to the micro-batch.

    A trainer that knows says so with ``info()["reads"]``: names of fields, such as ``ref_logps``, that ops make.

    Raises:
      MissingArrayError: points at the training call.
    """
    info = getattr(trainer, "info", None)
    said = info() if callable(info) else {}
    reads = said.get("reads", ()) if isinstance(said, Mapping) else ()
    program = plan.base.program
    types = {result.name: result.type for op in program.ops() for result in op.results}
    for call in plan.base.calls():
        if call.kind.name != "fwd_bwd" or not reads:
            continue
        fields = types[call.op.args[0].name].fields
        lacking = [name for name in reads if name not in fields]
        if lacking:
            raise MissingArrayError(
                f"the trainer's loss reads `{lacking[0]}`, which the micro-batch of `{call.op.id}` does not have",
                loc=call.op.loc,
                notes=(Note(f"the ops before it have made {', '.join(sorted(fields)) or 'nothing'}"),),
                help=f"run the op that adds `{lacking[0]}` before it, or choose a loss that does not read it",
            )
