"""Micro-batches that are padding on some shards of a mesh, or on all, change no gradient, no count and no metric."""

from __future__ import annotations

import numpy as np
import pytest
from test_sharded_trainer import ROWS, flat, mesh_of, micro_batch, trainer

pytestmark = pytest.mark.slow


def padded(index: int, kept: int):
    """A micro-batch of which the first rows hold sequences; the rest is padding."""
    made = micro_batch(0, index)
    for array in made.arrays.values():
        array[kept:] = 0
    return made


@pytest.fixture(scope="module")
def made():
    return trainer(mesh_of(2, 2, 2))


def step(made, folder, *micro_batches):
    """Train one step from the beginning; gives the parameters and the metrics."""
    made.restore_checkpoint(folder)
    for one in micro_batches:
        made.fwd_bwd(one)
    made.update()
    return flat(made), made.get_metrics()


@pytest.fixture(scope="module")
def folder(made, tmp_path_factory):
    place = tmp_path_factory.mktemp("padding") / "start"
    made.save_checkpoint(place)
    return place


def test_a_micro_batch_that_is_padding_everywhere_changes_nothing(made, folder):
    plain, metrics = step(made, folder, padded(0, ROWS), padded(1, ROWS))
    more, same = step(made, folder, padded(0, ROWS), padded(2, 0), padded(1, ROWS), padded(3, 0))
    np.testing.assert_array_equal(more, plain)
    assert {name: value for name, value in same.items() if name in metrics} == metrics


def test_shards_without_a_row_of_their_own_count_for_nothing(made, folder):
    """Three of four shards have nothing in the last micro-batch; the rows may as well lie in those that had some."""
    alone = trainer()
    here = folder.with_name("one")
    alone.save_checkpoint(here)
    batches = padded(0, ROWS), padded(1, ROWS // 4)
    sharded, metrics = step(made, folder, *batches)
    single, wanted = step(alone, here, *batches)
    assert metrics["count"] == wanted["count"]
    np.testing.assert_allclose(sharded, single, atol=1e-5)


def test_control_a_row_that_is_no_padding_is_seen(made, folder):
    plain, metrics = step(made, folder, padded(0, ROWS), padded(1, ROWS // 4))
    more, other = step(made, folder, padded(0, ROWS), padded(1, ROWS // 4 + 1))
    assert np.abs(more - plain).max() > 1e-4
    assert other["count"] > metrics["count"]
