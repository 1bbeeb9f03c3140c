"""Parameters to start from: restored for the model that they were written for, and refused for another."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax import nnx

import steptrace
from steptrace.diag.checkpoint import BrokenCheckpointError, OtherModelError


class Model(nnx.Module):
    def __init__(self, size: int, *, bias: bool = True, layers: int = 1) -> None:
        self.embed = nnx.Embed(5, size, rngs=nnx.Rngs(size))
        self.layers = nnx.List([nnx.Linear(size, 5, use_bias=bias, rngs=nnx.Rngs(1)) for _ in range(layers)])


def params(*args, **options):
    return nnx.split(Model(*args, **options))[1]


@pytest.fixture
def start(tmp_path):
    with ocp.StandardCheckpointer() as orbax:
        orbax.save(tmp_path / "start", params(4))
    return tmp_path / "start"


def test_the_arrays_come_back_for_the_same_model(start):
    like = jax.tree.map(jnp.zeros_like, params(4))
    restored = steptrace.restore(start, like)
    assert jax.tree.structure(restored) == jax.tree.structure(like)
    assert all(map(np.array_equal, jax.tree.leaves(restored), jax.tree.leaves(params(4))))


@pytest.mark.parametrize(
    ("model", "note"),
    [
        (lambda: params(3), "embed.embedding: float32[5, 4] there, float32[5, 3] in the model"),
        (lambda: params(4, bias=False), "layers.0.bias: float32[5] there, nothing in the model"),
        (lambda: params(4, layers=2), "layers.1.bias: nothing there, float32[5] in the model"),
        (
            lambda: jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params(4)),
            "embed.embedding: float32[5, 4] there, bfloat16[5, 4] in the model",
        ),
    ],
)
def test_another_model_is_refused_with_what_differs(start, model, note):
    with pytest.raises(OtherModelError, match="start holds the parameters of another model") as caught:
        steptrace.restore(start, model())
    assert caught.value.notes[0].text == note
    assert caught.value.help.startswith(f"remove {start}, ")


def test_what_is_no_checkpoint_is_refused(tmp_path, start):
    (tmp_path / "empty").mkdir()
    for place in ("none", "empty"):
        with pytest.raises(BrokenCheckpointError, match=f"{place} cannot be restored"):
            steptrace.restore(tmp_path / place, params(4))
