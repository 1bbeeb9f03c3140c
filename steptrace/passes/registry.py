"""All passes by name, and pipelines that have a name of their own."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from steptrace.passes.async_checkpoint import AsyncCheckpoint
from steptrace.passes.async_weight_sync import AsyncWeightSync
from steptrace.passes.autoschedule import Autoschedule
from steptrace.passes.base import Pass
from steptrace.passes.dce import Dce
from steptrace.passes.defer_metrics import DeferMetrics
from steptrace.passes.defer_update import DeferUpdate
from steptrace.passes.fuse_update import FuseUpdate
from steptrace.passes.memory_budget import MemoryBudget
from steptrace.passes.one_step_off import OneStepOff
from steptrace.passes.pipeline_micro_batches import PipelineMicroBatches
from steptrace.passes.place import Place
from steptrace.passes.release_buffers import ReleaseBuffers
from steptrace.passes.replay import Replay
from steptrace.passes.select_logps_head import SelectLogpsHead
from steptrace.passes.send_ahead import SendAhead
from steptrace.passes.stage_after_update import StageAfterUpdate
from steptrace.passes.stage_before_update import StageBeforeUpdate
from steptrace.passes.stream_micro_batches import StreamMicroBatches
from steptrace.passes.take_ahead import TakeAhead

PASSES: Mapping[str, type[Pass]] = MappingProxyType(
    {
        cls.name: cls
        for cls in (
            AsyncCheckpoint,
            AsyncWeightSync,
            Autoschedule,
            Dce,
            DeferMetrics,
            DeferUpdate,
            FuseUpdate,
            MemoryBudget,
            OneStepOff,
            PipelineMicroBatches,
            Place,
            ReleaseBuffers,
            Replay,
            SelectLogpsHead,
            SendAhead,
            StageAfterUpdate,
            StageBeforeUpdate,
            StreamMicroBatches,
            TakeAhead,
        )
    }
)
"""The passes by name."""

PIPELINES: Mapping[str, str] = MappingProxyType(
    {
        "pipelined-boundary": "take-ahead{depth=1},defer-metrics,stage-before-update,send-ahead",
        "pipelined-boundary-staged-after": "take-ahead{depth=1},defer-metrics,stage-after-update,send-ahead",
        "pipelined-boundary-unstaged": "take-ahead{depth=1},defer-metrics,send-ahead",
        "pipelined-boundary-replayed": "replay{late=1},pipelined-boundary",
        "async-everything": "one-step-off{staleness=1},pipelined-boundary,pipeline-micro-batches,async-weight-sync,"
        "async-checkpoint",
    }
)
"""Pipelines by name; a name stands for its text wherever a pass may stand."""
