"""Tests that need eight devices, which a process has from its start or never.

The rest of the tests have one. So the tests of a file are run together in a process that has eight, at the first of
them, and each test tells its own result from there. In a process with eight devices they run as any others:
``XLA_FLAGS=--xla_force_host_platform_device_count=8 python -m pytest tests/equivalence/mesh/test_x.py``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

import pytest

FLAG = "--xla_force_host_platform_device_count=8"
TOLD = pytest.StashKey[dict[Path, dict[str, tuple[str, str]]]]()


def run_elsewhere(items: Iterable[pytest.Item], folder: Path) -> None:
    """Have the tests below a folder run in a process with eight devices, unless this one has them."""
    if FLAG in os.environ.get("XLA_FLAGS", ""):
        return
    for item in items:
        if folder in item.path.parents and isinstance(item, pytest.Function):
            # Fixtures are set up in the other process, if they are needed there.
            item.fixturenames.clear()
            item.runtest = lambda item=item: _tell(item)


def _tell(item: pytest.Item) -> None:
    """The result of ``item`` in the process with eight devices."""
    told = item.session.stash.setdefault(TOLD, {})
    if item.path not in told:
        told[item.path] = _outcomes(item)
    kind, text = told[item.path].get(item.name, ("failure", "the process with eight devices did not get to this test"))
    if kind == "skipped":
        pytest.skip(text)
    if kind:
        pytest.fail(text, pytrace=False)


def _outcomes(first: pytest.Item) -> dict[str, tuple[str, str]]:
    """For each test of the file of ``first`` that is to run: what went wrong, or two empty strings."""
    wanted = [item.nodeid for item in first.session.items if item.path == first.path]
    flags = {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {FLAG}".strip()}
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "COV_"))} | flags
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", "-p", "no:cacheprovider", *wanted]
        done = subprocess.run(
            command, cwd=first.config.rootpath, env=environment, capture_output=True, text=True, check=False
        )
        if not report.exists():
            pytest.fail(f"pytest in a process with eight devices:\n{done.stdout}\n{done.stderr}", pytrace=False)
        cases = ElementTree.parse(report).getroot().iter("testcase")
        return {case.get("name", ""): _outcome(case) for case in cases}


def _outcome(case: ElementTree.Element) -> tuple[str, str]:
    for part in case:
        if part.tag in ("failure", "error", "skipped"):
            return part.tag, part.text or part.get("message", "")
    return "", ""
