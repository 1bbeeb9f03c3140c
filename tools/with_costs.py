"""The cost file that a command is given, for the passes of its pipeline that ask for one."""

from __future__ import annotations


def with_costs(pipeline: str, costs: str, *, micro_batches: int = 0) -> str:
    """A pipeline with a cost file for each pass that takes one and names none; the text as it is where none does.

    Args:
      pipeline: its text.
      costs: the file; "" for none.
      micro_batches: of a step, for passes that are not told by themselves; 0 leaves it to the file.

    Raises:
      SteptraceError: the text is no pipeline.
    """
    from dataclasses import replace

    from steptrace.passes import parse_pipeline, text_of
    from steptrace.passes.autoschedule import Autoschedule

    if not costs or Autoschedule.name not in pipeline:
        return pipeline
    passes = parse_pipeline(pipeline)
    given = [
        replace(one, costs=costs, micro_batches=one.micro_batches or micro_batches)
        if isinstance(one, Autoschedule) and not one.costs
        else one
        for one in passes
    ]
    return ",".join(map(text_of, given))
