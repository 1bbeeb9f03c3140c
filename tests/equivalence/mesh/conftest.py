"""Tests of this folder run in a process with eight devices."""

from __future__ import annotations

from pathlib import Path

import pytest
from eight_devices import run_elsewhere


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    run_elsewhere(items, Path(__file__).parent)
