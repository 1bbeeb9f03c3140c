"""Which functions treat each element by itself."""

import jax
import jax.numpy as jnp
import pytest

from steptrace_kernels.logps.elementwise import mixing_primitive

PAIR = [jnp.float32, jnp.float32]


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: -jnp.minimum(jnp.exp(a - b) * 2, jnp.clip(jnp.exp(a - b), 0.8, 1.2) * 2),
        lambda a, b: jnp.where(a > 0, jax.nn.softplus(b), jax.lax.stop_gradient(a)),
        lambda a, b: a * jnp.mean(jnp.arange(5.0)) + b,
        lambda a, b: jax.lax.cond(True, lambda x: x * 2, lambda x: -x, a),
        jax.jit(lambda a, b: a * b),
    ],
)
def test_elementwise(function):
    assert mixing_primitive(function, PAIR) is None


@pytest.mark.parametrize(
    ("function", "primitive"),
    [
        (lambda a, b: a - jnp.mean(a, axis=-1, keepdims=True), "reduce_sum"),
        (lambda a, b: jnp.exp(jnp.mean(a - b)) * a, "reduce_sum"),
        (lambda a, b: jnp.cumsum(a, axis=-1), "cumsum"),
        (lambda a, b: a[:, ::-1], "rev"),
        (lambda a, b: jnp.sort(a), "sort"),
        (lambda a, b: jnp.roll(a, 1, axis=-1), "slice"),
        (lambda a, b: a @ jnp.ones((3, 3)), "dot_general"),
        (jax.jit(lambda a, b: jnp.sort(a) * b), "sort"),
        (lambda a, b: jax.lax.cond(True, lambda x: x, jnp.sort, a), "sort"),
        (lambda a, b: jax.nn.softmax(a), "reduce_max"),
    ],
)
def test_control_functions_in_which_elements_meet(function, primitive):
    assert mixing_primitive(function, PAIR) == primitive


def test_what_gives_no_array_of_the_shape_is_refused():
    with pytest.raises(TypeError, match="shape of its arguments"):
        mixing_primitive(lambda a, b: jnp.sum(a), PAIR)
