"""A pipeline with what the main job fills into it for a mesh."""

from __future__ import annotations


def with_mesh(pipeline: str, mesh: str, task: str) -> str:
    """The pipeline with the log-prob head that the main job selects for a task on a mesh; as it is without a mesh.

    Sizes are enough: no device of the mesh has to be there.
    """
    if not mesh:
        return pipeline
    from steptrace.run.job import JobConfig
    from steptrace.run.job.head import with_planned_head
    from steptrace.run.job.recipe import recipe_for
    from steptrace.run.job.setup import load_setup

    config = JobConfig(task=task, pipeline=pipeline, mesh=mesh)
    return with_planned_head(config, load_setup(task, recipe_for(task), config.eval_size)).pipeline
