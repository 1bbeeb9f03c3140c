"""The log-prob head of a job: ``select-logps-head`` filled in for its model and mesh, and what parts are built with."""

from __future__ import annotations

from dataclasses import replace

from steptrace.check.head_law import SelectedHead, head_of
from steptrace.ir import Program
from steptrace.passes import parse_pipeline, text_of
from steptrace.passes.select_logps_head import UNKNOWN, SelectLogpsHead
from steptrace.run.api import plan_for
from steptrace.run.job.config import JobConfig
from steptrace.run.job.devices import mesh_sizes
from steptrace.run.job.setup import Setup
from steptrace.run.trainer.head_plan import HeadSizes, planned_head, planned_shard_map
from steptrace.run.trainer.heads import HeadName


def with_planned_head(config: JobConfig, setup: Setup) -> JobConfig:
    """The job with its pipeline as it is, but for a head that is left open: chosen, with reason and predicted bytes.

    Named pipelines are written out where there is one. A job without the pass stays as it is.
    """
    passes = parse_pipeline(config.pipeline)
    if not any(isinstance(one, SelectLogpsHead) for one in passes):
        return config
    sizes = head_sizes(config, setup)
    filled = (_filled(one, sizes) if isinstance(one, SelectLogpsHead) else one for one in passes)
    return replace(config, pipeline=",".join(map(text_of, filled)))


def in_words(config: JobConfig) -> str:
    """What the filled-in pass says, in a line; "" for a job without it."""
    return "; ".join(
        f"log-prob head {one.head}: {one.reason or 'asked for'}"
        + (f"; {one.bytes:,} bytes from each device in a training call" if one.bytes > 0 else "")
        for one in parse_pipeline(config.pipeline)
        if isinstance(one, SelectLogpsHead)
    )


def selected_head(config: JobConfig, program: Program) -> SelectedHead | None:
    """The head that the job's schedule names, whether a pass or a text put it there; None where none does."""
    return head_of(plan_for(program, config.pipeline, config.target, config.against or None).program)


def built_head(config: JobConfig, program: Program, setup: Setup) -> HeadName:
    """The head that the parts of a job are built with: the one selected, or planned for ``auto``; else ``dense``."""
    selected = selected_head(config, program)
    if selected is not None and selected.head == "auto":
        return planned_head(head_sizes(config, setup)).head
    return "shard_map" if selected is not None and selected.head == "shard_map" else "dense"


def head_sizes(config: JobConfig, setup: Setup) -> HeadSizes:
    """What the choice of a head depends on, of a job."""
    devices = mesh_sizes(config.mesh)
    packer = setup.packer_on(devices)
    return HeadSizes(packer.rows, packer.length, setup.recipe.dim, setup.tokenizer.vocab_size, devices)


def _filled(one: SelectLogpsHead, sizes: HeadSizes) -> SelectLogpsHead:
    """The pass with what its options leave open."""
    if one.head == "dense" or one.reason or one.bytes != UNKNOWN:
        return one
    made = planned_head(sizes) if one.head == "auto" else planned_shard_map(sizes)
    reason = made.reason if one.head == "auto" else f"asked for; {made.reason}"
    return replace(one, head=made.head, bytes=made.bytes, logps_bytes=made.logps_bytes, reason=reason)
