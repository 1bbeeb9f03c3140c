"""What the processes of a test session compile they share: each program is compiled once, whoever needs it next.

Tests make many jobs of one small model, here, on eight devices and in processes of their own, and most of their time
would go into compiling the same programs. JAX reads these variables when it is imported, and so do the processes that
tests start. What is traced, and how often, stays as it is; only the compiler's answer is kept.
"""

from __future__ import annotations

import os
import shutil
import tempfile

import pytest

FOLDER = "JAX_COMPILATION_CACHE_DIR"
SETTINGS = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
MADE = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    """Make the folder, unless the process that started this one did, or the user has one of their own."""
    if FOLDER not in os.environ:
        config.stash[MADE] = os.environ[FOLDER] = tempfile.mkdtemp(prefix="steptrace-compiled-")
        os.environ.update(SETTINGS)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the folder where this process made it."""
    if made := config.stash.get(MADE, None):
        shutil.rmtree(made, ignore_errors=True)
