"""The log-prob head under other transformations, and however the mesh is named."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from logps_oracle import assert_same, head_of, make, mesh_222, oracle

from steptrace_kernels.logps import Head, Layout, Strategy, dense_logps, logps

pytestmark = pytest.mark.slow

LAYOUT = Layout(batch=("f",), sequence=("c",), table_embed=("f", "e"))
CASE = make(2, 4, 4, 6)
EXPECTED = oracle(CASE)


def loss(hidden, head, *, mesh=None, layout=LAYOUT, **settings):
    settings = {"chunk_tokens": 2, "return_lse": True} | settings
    out = logps(hidden, CASE.tokens, head, mesh=mesh, layout=layout, **settings)
    return sum(jnp.sum(w * x) for w, x in zip(CASE.by, out, strict=True))


def on_mesh(hidden, head):
    return loss(hidden, head, mesh=mesh_222())


def assert_right(gradients):
    d_hidden, d_head = gradients
    found = {"d_hidden": np.asarray(d_hidden), "d_weight": np.asarray(d_head.weight)}
    assert_same(found, {name: EXPECTED[name] for name in found})


def gradients(function):
    return jax.grad(function, argnums=(0, 1))


def test_without_jit_and_with():
    assert_right(gradients(on_mesh)(CASE.hidden, head_of(CASE)))
    assert_right(jax.jit(gradients(on_mesh))(CASE.hidden, head_of(CASE)))


def test_rematerialised():
    assert_right(jax.jit(gradients(jax.checkpoint(on_mesh)))(CASE.hidden, head_of(CASE)))


def test_gradients_accumulated_in_a_scan():
    def step(total, hidden):
        return jax.tree.map(jnp.add, total, gradients(on_mesh)(hidden, head_of(CASE))), None

    zero = jax.tree.map(jnp.zeros_like, (CASE.hidden, head_of(CASE)))
    twice, _ = jax.jit(lambda many: jax.lax.scan(step, zero, many))(np.stack([CASE.hidden] * 2))
    assert_right(jax.tree.map(lambda x: x / 2, twice))


def test_mapped():
    many = jax.jit(jax.vmap(gradients(on_mesh), in_axes=(0, None)))(
        np.stack([CASE.hidden, 2 * CASE.hidden]), head_of(CASE)
    )
    assert_right(jax.tree.map(lambda x: x[0], many))


def test_mapped_with_different_numbers_of_needed_tokens():
    needed = np.random.default_rng(0).random((2, *CASE.tokens.shape)) < 0.5

    def one(needed):
        return jax.grad(lambda hidden: loss(hidden, head_of(CASE), mesh=mesh_222(), needed=needed))(CASE.hidden)

    both = jax.jit(jax.vmap(one))(needed)
    for found, mask in zip(both, needed, strict=True):
        assert_same({"d_hidden": np.asarray(found)}, {"d_hidden": oracle(CASE.but(needed=mask))["d_hidden"]})


@pytest.mark.parametrize(
    ("strategy", "needed"),
    [
        ("auto", None),
        (Strategy(("c", "e"), keep_hidden=True), None),
        (Strategy(("c", "e"), chunk_tokens=3, keep_hidden=True), np.arange(8).reshape(2, 4) % 3 > 0),
    ],
)
def test_second_order(strategy, needed):
    def squared_norm(function):
        return lambda hidden: sum(jnp.sum(g * g) for g in jax.tree.leaves(gradients(function)(hidden, head_of(CASE))))

    def dense(hidden, head):
        needs = np.ones(CASE.tokens.shape, bool) if needed is None else needed
        out = dense_logps(hidden @ head.weight.T, CASE.tokens, np.ones(CASE.tokens.shape, int))
        return sum(jnp.sum(w * needs * x) for w, x in zip(CASE.by, out, strict=True))

    def sharded(hidden, head):
        return loss(hidden, head, mesh=mesh_222(), strategy=strategy, needed=needed)

    found = jax.jit(jax.grad(squared_norm(sharded)))(CASE.hidden)
    expected = np.asarray(jax.jit(jax.grad(squared_norm(dense)))(CASE.hidden))
    assert np.max(np.abs(expected)) > 0.1
    assert_same({"d_hidden": np.asarray(found)}, {"d_hidden": expected}, tolerance=1e-5)


def test_the_mesh_of_the_context_either_way():
    with jax.set_mesh(mesh_222()):
        assert_right(jax.jit(gradients(loss))(CASE.hidden, head_of(CASE)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with mesh_222():
            assert_right(jax.jit(gradients(loss))(CASE.hidden, head_of(CASE)))


@pytest.mark.parametrize("placed", [True, False], ids=["as the layout says", "otherwise"])
def test_explicit_axes(placed):
    mesh = jax.make_mesh((2, 2, 2), ("f", "c", "e"), axis_types=(AxisType.Explicit,) * 3)
    with jax.set_mesh(mesh):
        spec = PartitionSpec("f", "c", None) if placed else PartitionSpec(None, "f", None)
        hidden = jax.device_put(CASE.hidden, spec)
        head = jax.device_put(head_of(CASE), PartitionSpec(None, ("f", "e")))
        # Where they lie as they should, the layout is read from their types.
        layout = None if placed else LAYOUT
        found = jax.jit(gradients(lambda h, w: loss(h, w, layout=layout)))(hidden, head)
        assert jax.typeof(found[0]).sharding.spec == spec
        assert_right(found)


def test_a_mesh_of_explicit_and_automatic_axes():
    kinds = (AxisType.Explicit, AxisType.Auto, AxisType.Auto)
    with jax.set_mesh(jax.make_mesh((2, 2, 2), ("f", "c", "e"), axis_types=kinds)):
        assert_right(jax.jit(gradients(loss))(CASE.hidden, head_of(CASE)))


def test_float64_throughout():
    with jax.enable_x64(True):
        case = make(2, 4, 4, 6, dtype=np.float64)
        out = logps(case.hidden, case.tokens.astype(np.int64), head_of(case), mesh=mesh_222(), layout=LAYOUT)
        assert out.logp.dtype == jnp.float64
        np.testing.assert_allclose(out.logp, oracle(case)["logp"], atol=1e-13)
        np.testing.assert_allclose(out.entropy, oracle(case)["entropy"], atol=1e-13)


@pytest.mark.parametrize("dtype", [jnp.uint32, jnp.int8])
def test_dtypes_of_tokens(dtype):
    out = jax.jit(lambda t: logps(CASE.hidden, t, head_of(CASE), mesh=mesh_222(), layout=LAYOUT))(
        CASE.tokens.astype(dtype)
    )
    np.testing.assert_allclose(out.logp, EXPECTED["logp"], atol=2e-6)


def test_log_probs_are_the_same_bits_with_a_gradient_and_without_and_again():
    plain = jax.jit(lambda h: logps(h, CASE.tokens, head_of(CASE), mesh=mesh_222(), layout=LAYOUT))

    def with_gradient(hidden):
        def total(hidden):
            out = logps(hidden, CASE.tokens, head_of(CASE), mesh=mesh_222(), layout=LAYOUT)
            return jnp.sum(out.logp), out

        return jax.value_and_grad(total, has_aux=True)(hidden)[0][1]

    first, again, inside = plain(CASE.hidden), plain(CASE.hidden), jax.jit(with_gradient)(CASE.hidden)
    for a, b, c in zip(jax.tree.leaves(first), jax.tree.leaves(again), jax.tree.leaves(inside), strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, c)


def test_a_tied_table_gets_both_gradients():
    def through_lookup(weight, sharded):
        hidden = weight[CASE.tokens]
        if sharded:
            out = logps(hidden, CASE.tokens, head_of(CASE.but(weight=weight)), mesh=mesh_222(), layout=LAYOUT)
        else:
            out = dense_logps(hidden @ weight.T, CASE.tokens, np.ones(CASE.tokens.shape, int))
        return jnp.sum(CASE.by[0] * out.logp)

    found, expected = (jax.jit(jax.grad(lambda w, s=s: through_lookup(w, s)))(CASE.weight) for s in (True, False))
    assert_same({"d_weight": np.asarray(found)}, {"d_weight": np.asarray(expected)})


@pytest.mark.parametrize("transform", [jax.jit, lambda function: function], ids=["compiled", "not"])
def test_a_table_kept_in_host_memory_is_brought_and_its_gradient_goes_back(transform):
    spec = NamedSharding(mesh_222(), PartitionSpec(None, "f"), memory_kind="pinned_host")
    weight = jax.device_put(CASE.weight, spec)
    found = transform(gradients(on_mesh))(CASE.hidden, Head(weight))
    assert_right(found)
    assert found[1].weight.sharding.memory_kind == "pinned_host"


def test_control_a_product_with_host_memory_is_refused_by_jax():
    weight = jax.device_put(CASE.weight, jax.memory.Space.Host)
    with pytest.raises(ValueError, match="memory_space"):
        jax.jit(jnp.dot)(CASE.hidden, weight.T)


def test_arguments_that_are_given_away():
    """The last use of hidden states and table is this gradient, which may take their place."""
    sharding = NamedSharding(mesh_222(), PartitionSpec("f", "c", None))
    hidden = jax.device_put(CASE.hidden, sharding)
    weight = jax.device_put(CASE.weight, NamedSharding(mesh_222(), PartitionSpec(None, ("f", "e"))))
    step = jax.jit(gradients(on_mesh), donate_argnums=(0, 1), out_shardings=(sharding, None))
    assert_right(step(hidden, Head(weight)))
    assert hidden.is_deleted()


def test_an_axis_of_the_mesh_cannot_be_mapped_over_by_name():
    """All axes belong to the head; an axis that shards what is mapped over is one of ``layout.batch``."""
    mapped = jax.vmap(gradients(on_mesh), in_axes=(0, None), spmd_axis_name="e")
    with pytest.raises(ValueError, match="spmd_axis_name"):
        mapped(np.stack([CASE.hidden] * 2), head_of(CASE))
