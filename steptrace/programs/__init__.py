"""The built-in programs, by name; each is imported when it is first asked for."""

from __future__ import annotations

import importlib

from steptrace.lang.definition import ProgramDef

NAMES = ("grpo", "dr_grpo", "rloo", "reinforce_pp", "grpo_stream", "grpo_epochs")
"""Names of the built-in programs; each is a module here that holds a program of its name."""


def load(name: str) -> ProgramDef:
    """The built-in program of that name, which must be in ``NAMES``."""
    found = getattr(importlib.import_module(f"{__name__}.{name}"), name)
    assert isinstance(found, ProgramDef), f"module {name} holds a program of its name"
    return found
