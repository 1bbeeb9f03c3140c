"""Trees of arrays on disk."""

from __future__ import annotations

from typing import NamedTuple

import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from steptrace.run.trees import restore_tree, save_tree


class Model(nnx.Module):
    def __init__(self) -> None:
        self.layers = nnx.List([nnx.Linear(2, 3, rngs=nnx.Rngs(index)) for index in range(2)])


class Point(NamedTuple):
    x: jax.Array
    y: list[np.ndarray]


TREES = {
    "dict": lambda: {"w": jnp.arange(3.0), "b": {"x": jnp.ones((2, 2), jnp.bfloat16)}},
    "numpy": lambda: {"w": np.arange(3.0), "n": np.arange(2, dtype=np.int8)},
    "list": lambda: [jnp.zeros(2), (jnp.ones(3, jnp.int32),)],
    "state": lambda: nnx.state(Model(), nnx.Param),
    "one": lambda: jnp.float32(3),
    "numbers": lambda: {"scale": 1.5, "count": 3, "w": jnp.ones(2), "of numpy": np.float32(2)},
    "some without elements": lambda: {"a": np.zeros((0, 3), np.int8), "b": jnp.arange(3.0), "c": jnp.zeros((2, 0))},
    "none with elements": lambda: [jnp.zeros(0)],
    "nothing": dict,
    "named": lambda: Point(jnp.ones(2), [np.zeros(3)]),
}


@pytest.mark.parametrize("name", TREES)
def test_a_tree_comes_back_bit_for_bit(tmp_path, name):
    tree = TREES[name]()
    save_tree(tmp_path / "deep" / "tree", tree)
    like = jax.tree.map(lambda leaf: leaf * 0, tree)
    again = restore_tree(tmp_path / "deep" / "tree", like)
    assert jax.tree.structure(again) == jax.tree.structure(tree)
    for one, other in zip(jax.tree.leaves(again), jax.tree.leaves(tree), strict=True):
        assert (np.asarray(one).dtype, np.shape(one)) == (np.asarray(other).dtype, np.shape(other))
        assert isinstance(one, jax.Array) == isinstance(other, jax.Array)
        assert isinstance(one, jax.Array) or type(one) is type(other)
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


def test_what_was_saved_does_not_follow_the_array_that_it_was_saved_from(tmp_path):
    tree = {"w": np.zeros(3)}
    save_tree(tmp_path / "tree", tree)
    tree["w"][:] = 1
    assert np.asarray(restore_tree(tmp_path / "tree", tree)["w"]).tolist() == [0, 0, 0]
