"""One-token shifts of sharded sequences, against those of whole ones."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from logps_oracle import mesh_222

from steptrace_kernels.logps.shifts import NO_LOGP, shift_left, shift_right, targets

ORDERS = [("c",), ("c", "e"), ("e", "c"), ("e", "f", "c"), ()]


def on_shards(function, axes, arrays):
    """``function`` of arrays [rows, length] sharded over ``axes``."""
    spec = PartitionSpec(None, axes or None)
    mapped = jax.shard_map(function, mesh=mesh_222(), in_specs=spec, out_specs=spec, check_vma=False)
    return np.asarray(jax.jit(mapped)(*arrays))


@pytest.mark.parametrize("axes", ORDERS)
@pytest.mark.parametrize("length", [8, 16])
def test_both_ways_over_axes_in_any_order(axes, length):
    x = np.arange(1, 2 * length + 1, dtype=np.int32).reshape(2, length)
    left, right = np.zeros_like(x), np.zeros_like(x)
    left[:, :-1], right[:, 1:] = x[:, 1:], x[:, :-1]
    np.testing.assert_array_equal(on_shards(partial(shift_left, axes=axes), axes, [x]), left)
    np.testing.assert_array_equal(on_shards(partial(shift_right, axes=axes), axes, [x]), right)


def test_control_a_roll_of_each_shard_is_another_thing():
    x = np.arange(1, 9, dtype=np.int32).reshape(1, 8)
    rolled = on_shards(lambda x: jnp.roll(x, -1, axis=-1), ("c",), [x])
    assert rolled.tolist() == [[2, 3, 4, 1, 6, 7, 8, 5]]


@pytest.mark.parametrize("axes", [("c",), ("f", "c", "e")])
def test_targets_at_ends_of_segments_and_where_nothing_is_needed(axes):
    tokens = np.array([[3, 9, 1, 4, -1, 2, 7, 0], [3, 1, 1, 4, 1, 2, 5, 0]], np.int32)
    segments = np.array([[1, 1, 1, 2, 2, 2, 0, 0], [0, 1, 1, 1, 1, 1, 1, 1]], np.int32)
    needed = np.array([[1, 1, 1, 1, 1, 0, 1, 1], [1, 1, 1, 0, 1, 1, 1, 1]], bool)

    def local(tokens, segments, needed):
        return targets(tokens, 9, axes, segment_ids=segments, needed=needed)

    found = on_shards(local, axes, [tokens, segments, needed])
    n = NO_LOGP
    # 9 is the first id out of range, and stands for all of them.
    assert found.tolist() == [[9, 1, n, 9, n, n, n, n], [n, 1, n, 1, 2, 5, 0, n]]
