"""Versions of the weights: one content each, pinned, owned."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from steptrace.diag.rollout import NoWeightsError, VersionHeldError, VersionNotHeldError, WeightsMismatchError
from steptrace.run.rollout.weights import HeldWeights, owned_copy


def weights(value=0.0):
    return {"layer": {"kernel": jnp.full((4, 16), value), "bias": jnp.full((16,), value)}}


def holding(*versions):
    held = HeldWeights(weights())
    for version in versions:
        held.apply(weights(float(version)), version)
    return held


def aligned(value):
    """A host array at a 64-byte boundary, the kind JAX takes without a copy."""
    raw = np.zeros(64 * 4 + 64, np.uint8)
    start = -raw.ctypes.data % 64
    array = raw[start : start + 64 * 4].view(np.float32).reshape(4, 16)
    array[:] = value
    return array


def refusal(error, action):
    with pytest.raises(error) as caught:
        action()
    return str(caught.value)


def test_each_version_keeps_its_own_content():
    held = holding(3, 1)
    assert held.versions == (1, 3)
    assert [float(held.read(version)["layer"]["bias"][0]) for version in (1, 3)] == [1.0, 3.0]


def test_reading_before_anything_was_applied():
    text = refusal(NoWeightsError, lambda: holding().read(0))
    assert text.startswith("error[ST471]: version 0 was asked for, but no weights were ever applied")


def test_reading_a_version_that_is_not_held_names_those_that_are():
    text = refusal(VersionNotHeldError, lambda: holding(1, 3).read(2))
    assert "error[ST472]: version 2 of the weights is not held" in text
    assert "held: 1, 3" in text


def test_a_dropped_version_is_gone_and_the_others_stay():
    held = holding(1, 3)
    held.drop(1)
    assert held.versions == (3,)
    assert "held: 3" in refusal(VersionNotHeldError, lambda: held.read(1))
    assert "held: 3" in refusal(VersionNotHeldError, lambda: held.drop(1))
    held.drop(3)
    assert "held: none" in refusal(VersionNotHeldError, lambda: held.read(3))


def test_a_held_version_is_not_overwritten():
    held = holding(1)
    assert "error[ST473]" in refusal(VersionHeldError, lambda: held.apply(weights(9.0), 1))
    assert float(held.read(1)["layer"]["bias"][0]) == 1.0


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda w: w["layer"].update(bias=jnp.zeros(8)), "layer.bias: expected float32[16], found float32[8]"),
        (lambda w: w["layer"].update(bias=np.zeros(16)), "layer.bias: expected float32[16], found float64[16]"),
        (lambda w: w["layer"].pop("bias"), "layer.bias: expected float32[16], found nothing"),
        (lambda w: w.update(head=jnp.zeros(2)), "head: expected nothing, found float32[2]"),
        (lambda w: w["layer"]["bias"].delete(), "layer.bias: expected float32[16], found a deleted buffer"),
    ],
)
def test_weights_of_another_model_are_refused_by_path(change, line):
    held, other = holding(), weights()
    change(other)
    text = refusal(WeightsMismatchError, lambda: held.apply(other, 0))
    assert "error[ST474]: the weights do not fit the rollout's model: 1 of 2 arrays differ" in text
    assert line in text
    assert held.versions == ()


def test_held_weights_outlive_a_trainer_that_donates_its_own():
    params, held = weights(1.0), holding()
    held.apply(params, 0)
    jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf + 1, tree), donate_argnums=0)(params)
    assert params["layer"]["kernel"].is_deleted(), "this backend does not donate, so the test shows nothing"
    np.testing.assert_array_equal(held.read(0)["layer"]["kernel"], np.ones((4, 16)))


def test_a_host_buffer_may_be_overwritten_once_its_weights_were_applied():
    buffer, held = aligned(1.0), holding()
    held.apply({"layer": {"kernel": buffer, "bias": np.zeros(16, np.float32)}}, 0)
    buffer[:] = 2.0
    np.testing.assert_array_equal(held.read(0)["layer"]["kernel"], np.ones((4, 16)))


def test_control_a_plain_device_put_of_that_buffer_would_see_the_change():
    buffer = aligned(1.0)
    array = jax.block_until_ready(jax.device_put(buffer))
    buffer[:] = 2.0
    if np.asarray(array)[0, 0] == 1.0:
        pytest.skip("this backend copies aligned host buffers")
    np.testing.assert_array_equal(array, np.full((4, 16), 2.0))


def test_an_owned_copy_keeps_structure_values_and_dtypes():
    tree = {"a": [jnp.arange(3), np.arange(2, dtype=np.int8)], "b": ()}
    copy = owned_copy(tree)
    assert jax.tree.structure(copy) == jax.tree.structure(tree)
    assert [(leaf.dtype, leaf.tolist()) for leaf in jax.tree.leaves(copy)] == [("int32", [0, 1, 2]), ("int8", [0, 1])]
