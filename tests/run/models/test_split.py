"""Splitting NNX and linen models, and calling what `build` gives inside jit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx
from flax.core import freeze

from steptrace.diag.training import ModelError
from steptrace.run.models import SplitModel, split_model


class NnxNet(nnx.Module):
    def __init__(self, rngs):
        self.layers = nnx.List([nnx.Linear(3, 4, rngs=rngs), nnx.Linear(4, 4, rngs=rngs)])
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.drop(self.norm(x))


class LinenNet(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.BatchNorm(use_running_average=False)(nn.Dense(4)(x))
        return nn.Dropout(0.5, deterministic=False)(x)


def call(split: SplitModel):
    @jax.jit
    def leaf(params, rest, x):
        model = split.build(params, rest)
        return model(x), split.collect(model)

    return leaf


X = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)


def frozen_split():
    """Variables in the form that older checkpoints and `flax.core.freeze` give."""
    net = LinenNet()
    variables = net.init({"params": jax.random.key(0), "dropout": jax.random.key(1)}, X)
    return split_model(net, linen_variables=freeze(variables), linen_rngs={"dropout": jax.random.key(2)})


def nnx_split():
    return split_model(NnxNet(nnx.Rngs(0)))


def linen_split():
    net = LinenNet()
    keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    return split_model(net, linen_variables=net.init(keys, X), linen_rngs={"dropout": jax.random.key(2)})


def test_nnx_gives_what_the_model_gives():
    split, model = nnx_split(), NnxNet(nnx.Rngs(0))
    for _ in range(2):
        out, rest = call(split)(split.params, split.rest, X)
        np.testing.assert_allclose(out, model(X), rtol=1e-6, atol=1e-6)
        split = SplitModel(split.params, rest, split.build, split.collect)


@pytest.mark.parametrize("make", [nnx_split, linen_split, frozen_split])
def test_state_moves_in_rest_and_only_there(make):
    split = make()
    leaf = call(split)
    first, rest = leaf(split.params, split.rest, X)
    again, _ = leaf(split.params, split.rest, X)
    later, _ = leaf(split.params, rest, X)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, later)  # another dropout mask
    assert jax.tree.structure(rest) == jax.tree.structure(split.rest)
    assert leaf._cache_size() == 1


def test_linen_module_without_state():
    net = nn.Dense(4)
    variables = net.init(jax.random.key(0), X)
    split = split_model(net, linen_variables=variables)
    out, rest = call(split)(split.params, split.rest, X)
    np.testing.assert_array_equal(out, jax.jit(net.apply)(variables, X))
    assert jax.tree.leaves(rest) == []


def test_what_a_call_sows_is_no_state():
    class Sowing(nn.Module):
        @nn.compact
        def __call__(self, x):
            self.sow("intermediates", "x", x)
            return nn.Dense(4)(x)

    net = Sowing()
    split = split_model(net, linen_variables={"params": net.init(jax.random.key(0), X)["params"]})
    _, rest = call(split)(split.params, split.rest, X)
    assert jax.tree.structure(rest) == jax.tree.structure(split.rest)


def test_wrt_selects_what_is_trained():
    class Adapter(nnx.Module):
        def __init__(self, rngs):
            self.base = nnx.Linear(3, 4, rngs=rngs)
            self.lora = nnx.LoRA(3, 2, 4, rngs=rngs)

        def __call__(self, x):
            return self.base(x) + self.lora(x)

    split = split_model(Adapter(nnx.Rngs(0)), wrt=nnx.LoRAParam)
    assert sorted(split.params) == ["lora"]
    assert sorted(split.rest) == ["base"]


class OnlyCounts(nnx.Module):
    def __init__(self):
        self.n = nnx.Param(jnp.zeros((), jnp.int32))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: split_model(lambda x: x), "must be a flax NNX or linen module, not a function"),
        (lambda: split_model(nn.Dense(4)), "came without its variables"),
        (lambda: split_model(nn.Dense(4), linen_variables={"batch_stats": {}}), "came without its variables"),
        (lambda: split_model(NnxNet(nnx.Rngs(0)), linen_variables={}), "holds its variables"),
        (lambda: split_model(nnx.Dropout(0.5, rngs=nnx.Rngs(0))), "no trainable parameter"),
        (lambda: split_model(OnlyCounts()), "n is an array of int32"),
    ],
)
def test_other_things_are_refused(make, words):
    with pytest.raises(ModelError, match=words):
        make()
