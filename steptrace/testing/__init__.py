"""What users need to test programs and parts of their own.

Assertions: ``assert_equivalent``, ``assert_refused``, ``assert_dump``. One call of an op of one's own that must touch
no more than it declares: ``sanitized_call``. Faults put into a run: ``inject``, ``Fault``, ``random_fault``. Case
files: ``steptrace.testing.cases``, which pytest collects once steptrace is installed. Strategies for hypothesis, which
must be installed: ``programs``, ``pipelines``. Doubles of trainers in virtual and in real time: see
``steptrace.testing.doubles``; parts in numpy for real runs: ``steptrace.testing.hash_parts``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from steptrace.testing.asserts import assert_dump as assert_dump
    from steptrace.testing.asserts import assert_equivalent as assert_equivalent
    from steptrace.testing.asserts import assert_refused as assert_refused
    from steptrace.testing.doubles import DeviceWaitTrainer as DeviceWaitTrainer
    from steptrace.testing.doubles import FailedStageTrainer as FailedStageTrainer
    from steptrace.testing.doubles import LostStageTrainer as LostStageTrainer
    from steptrace.testing.doubles import OlderTrainer as OlderTrainer
    from steptrace.testing.doubles import ReplayTrainer as ReplayTrainer
    from steptrace.testing.doubles import SlowFeed as SlowFeed
    from steptrace.testing.doubles import TokenWaitTrainer as TokenWaitTrainer
    from steptrace.testing.doubles import UpdatesAnywayTrainer as UpdatesAnywayTrainer
    from steptrace.testing.faults import Fault as Fault
    from steptrace.testing.faults import Faults as Faults
    from steptrace.testing.faults import inject as inject
    from steptrace.testing.faults import random_fault as random_fault
    from steptrace.testing.op_calls import sanitized_call as sanitized_call
    from steptrace.testing.random_pipelines import pipelines as pipelines
    from steptrace.testing.real_time import RealTimeTrainer as RealTimeTrainer
    from steptrace.testing.strategies import programs as programs

# Loaded at first use: pytest loads this package to find its plugin, and not everyone has hypothesis.
_HOMES = {
    "DeviceWaitTrainer": "doubles",
    "FailedStageTrainer": "doubles",
    "Fault": "faults",
    "Faults": "faults",
    "LostStageTrainer": "doubles",
    "OlderTrainer": "doubles",
    "ReplayTrainer": "doubles",
    "SlowFeed": "doubles",
    "TokenWaitTrainer": "doubles",
    "UpdatesAnywayTrainer": "doubles",
    "RealTimeTrainer": "real_time",
    "assert_dump": "asserts",
    "assert_equivalent": "asserts",
    "assert_refused": "asserts",
    "inject": "faults",
    "pipelines": "random_pipelines",
    "random_fault": "faults",
    "programs": "strategies",
    "sanitized_call": "op_calls",
}

__all__ = [
    "DeviceWaitTrainer",
    "FailedStageTrainer",
    "Fault",
    "Faults",
    "LostStageTrainer",
    "OlderTrainer",
    "RealTimeTrainer",
    "ReplayTrainer",
    "SlowFeed",
    "TokenWaitTrainer",
    "UpdatesAnywayTrainer",
    "assert_dump",
    "assert_equivalent",
    "assert_refused",
    "inject",
    "pipelines",
    "programs",
    "random_fault",
    "sanitized_call",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
