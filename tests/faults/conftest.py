"""Runs of this folder may keep published weights without Orbax, which takes a hundred times as long."""

from __future__ import annotations

import pytest

from steptrace.run import manifest
from steptrace.testing.durable_runs import pickle_tree, unpickle_tree


@pytest.fixture
def quick_trees(monkeypatch):
    """Published weights are pickled."""
    monkeypatch.setattr(manifest, "save_tree", pickle_tree)
    monkeypatch.setattr(manifest, "restore_tree", unpickle_tree)
