"""Which functions treat each element by itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from steptrace_kernels.logps.elementwise import mixing_primitive, placing_primitive

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
    assert placing_primitive(function, PAIR) is None


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
        (lambda a, b: a.at[..., 0].add(5.0), "scatter-add"),
        (lambda a, b: a.at[..., 0].multiply(5.0), "scatter-mul"),
        (lambda a, b: jax.lax.top_k(a, a.shape[-1])[0], "top_k"),
        (lambda a, b: jax.lax.pad(a, 0.0, [(0, 0, 0)] * (a.ndim - 1) + [(1, -1, 0)]), "pad"),
        (lambda a, b: jax.lax.reduce_window(a, 0.0, jax.lax.add, (1, 3), (1, 1), "SAME"), "reduce_window_sum"),
        (lambda a, b: jax.lax.dynamic_update_slice(a, jnp.zeros((1, 1)), (0, 0)), "dynamic_update_slice"),
    ],
)
def test_control_functions_in_which_elements_meet(function, primitive):
    assert mixing_primitive(function, PAIR) == primitive


@pytest.mark.parametrize(
    ("function", "primitive"),
    [
        (lambda a, b: a / a.size, "div"),
        (lambda a, b: a / a.shape[-1] + b, "div"),
        (lambda a, b: a / jnp.ones_like(b).sum(), "reduce_sum"),
        (lambda a, b: a * jnp.arange(a.shape[-1]), "iota"),
        (lambda a, b: a * jax.lax.broadcasted_iota(jnp.float32, a.shape, a.ndim - 1), "iota"),
        (jax.jit(lambda a, b: a * (1 / b.size)), "mul"),
        (lambda a, b: a * np.arange(a.size).reshape(a.shape), "a constant of the shape of its arguments"),
        (lambda a, b: a * 2 if a.size > 6 else a, "a form of its own for each shape"),
    ],
)
def test_control_functions_in_which_place_or_number_of_elements_has_a_part(function, primitive):
    assert mixing_primitive(function, PAIR) is None
    assert placing_primitive(function, PAIR) == primitive


@pytest.mark.parametrize("constant", [np.ones((2, 3)), np.ones(3)])
def test_what_takes_one_shape_alone_is_refused(constant):
    with pytest.raises((TypeError, ValueError), match=r"(?i)incompatible shapes"):
        placing_primitive(lambda a, b: a * constant, PAIR)


def test_a_traced_array_that_is_closed_over_is_refused():
    @jax.jit
    def scaled(factor):
        placing_primitive(lambda a, b: a * factor, PAIR)

    with pytest.raises(TypeError, match="pass it as aux"):
        scaled(2.0)
    known = jnp.float32(2)
    assert placing_primitive(lambda a, b: a * known, PAIR) is None


def test_what_gives_no_array_of_the_shape_is_refused():
    with pytest.raises(TypeError, match="shape of its arguments"):
        mixing_primitive(lambda a, b: jnp.sum(a), PAIR)
