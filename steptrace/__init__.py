"""steptrace: a compiler for the RL train step.

Public names are loaded when they are first used, so that ``import steptrace`` loads no jax.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from steptrace.diag.base import SteptraceError as SteptraceError
    from steptrace.ir.program import Program as Program
    from steptrace.lang.definition import ProgramDef as ProgramDef
    from steptrace.lang.definition import program as program
    from steptrace.lang.definition import trace as trace
    from steptrace.lang.parts import Advantages as Advantages
    from steptrace.lang.parts import Callback as Callback
    from steptrace.lang.parts import Checkpointable as Checkpointable
    from steptrace.lang.parts import PromptSource as PromptSource
    from steptrace.lang.parts import Reference as Reference
    from steptrace.lang.parts import Reward as Reward
    from steptrace.lang.parts import Rollout as Rollout
    from steptrace.lang.parts import Tokenizer as Tokenizer
    from steptrace.lang.parts import Tracker as Tracker
    from steptrace.lang.parts import Trainer as Trainer
    from steptrace.lang.records import Completion as Completion
    from steptrace.lang.records import Group as Group
    from steptrace.lang.records import GroupId as GroupId
    from steptrace.lang.records import MicroBatch as MicroBatch
    from steptrace.lang.records import Prompt as Prompt
    from steptrace.lang.reference import resolve as resolve
    from steptrace.lang.resources import resource as resource
    from steptrace.lang.step import Step as Step
    from steptrace.lang.user_ops import op as op
    from steptrace.run.api import run as run
    from steptrace.run.data.packing import Packer as Packer
    from steptrace.run.data.prompts import JsonlPrompts as JsonlPrompts
    from steptrace.run.data.prompts import ListPrompts as ListPrompts
    from steptrace.run.start import restore as restore
    from steptrace.workers.remote import Remote as Remote
    from steptrace.workers.remote import remote as remote

_HOMES = {
    "lang.definition": ("program", "trace", "ProgramDef"),
    "lang.user_ops": ("op",),
    "lang.resources": ("resource",),
    "lang.reference": ("resolve",),
    "lang.step": ("Step",),
    "lang.parts": (
        "Advantages",
        "Callback",
        "Checkpointable",
        "PromptSource",
        "Reference",
        "Reward",
        "Rollout",
        "Tokenizer",
        "Tracker",
        "Trainer",
    ),
    "lang.records": ("Completion", "Group", "GroupId", "MicroBatch", "Prompt"),
    "ir.program": ("Program",),
    "run.data.packing": ("Packer",),
    "run.data.prompts": ("JsonlPrompts", "ListPrompts"),
    "run.start": ("restore",),
    "diag.base": ("SteptraceError",),
    "workers.remote": ("Remote", "remote"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [*_HOME_OF, "run"]


def __getattr__(name: str) -> object:
    if name == "run":
        return importlib.import_module("steptrace.run")
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"steptrace.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
