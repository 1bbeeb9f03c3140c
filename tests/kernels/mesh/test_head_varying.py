"""What the head gives whole along a mesh axis is the same on all devices there: shard_map is told not to look.

Two independent looks. The copies that devices hold of one shard are compared, bit for bit. And the passes are run with
the check of varying axes on: in front of it loops begin with carries that vary as what they add, and what is to be
equal is made so for the type system by a maximum over the axis, which changes nothing that is equal.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from logps_oracle import assert_same, by_kernel, head_of, make, mesh_222, oracle

from steptrace_kernels.logps import Layout, Strategy, backward, blocks, engine, logps, tokens, vocab

pytestmark = pytest.mark.slow

AXES = ("f", "c", "e")
FULL = Layout(batch=("f", "e"), sequence=("c",), table_embed=AXES)
IDLE = Layout(batch=("f",), sequence=("c",), table_embed=("f", "c"))
REPLICATED = Layout(batch=("f", "e"), sequence=("c",))
CASES = {
    "seed": (FULL, Strategy(chunk_tokens=2)),
    "vocabulary over tokens": (FULL, Strategy(vocab_axes=("c",), chunk_tokens=2)),
    "idle axis": (IDLE, "auto"),
    "blocks": (FULL, Strategy(vocab_blocks=3, prefetch=True, chunk_tokens=2)),
    "whole table": (REPLICATED, Strategy(chunk_tokens=2)),
}


def shards_that_differ(layout, strategy) -> set[str]:
    """Names of results of which two devices hold unequal copies."""
    case = make(bias=True, norm=True)

    @jax.jit
    def both(hidden, head):
        def loss(hidden, head):
            out = logps(hidden, case.tokens, head, mesh=mesh_222(), layout=layout, strategy=strategy, return_lse=True)
            return sum(jnp.sum(w * x) for w, x in zip(case.by, out, strict=True)), out

        return jax.grad(loss, argnums=(0, 1), has_aux=True)(hidden, head)

    (d_hidden, d_head), out = both(case.hidden, head_of(case))
    named = {**out._asdict(), "d_hidden": d_hidden, "d_weight": d_head.weight, "d_bias": d_head.bias}
    return {name for name, array in {**named, "d_scale": d_head.norm.scale}.items() if _differ(array)}


def _differ(array: jax.Array) -> bool:
    copies = defaultdict(set)
    for shard in array.addressable_shards:
        copies[str(shard.index)].add(np.asarray(shard.data).tobytes())
    assert len(array.addressable_shards) == 8
    return any(len(found) > 1 for found in copies.values())


@pytest.mark.parametrize("name", CASES)
def test_copies_are_equal(name):
    assert shards_that_differ(*CASES[name]) == set()


def test_control_a_result_that_differs_along_an_axis_is_seen(monkeypatch):
    """The gradient of the bias without its sum over the axis that shards tokens and not the table."""
    give_back = vocab.give_back

    def without_sum(route, slab, dtype):
        return give_back(dataclasses.replace(route, tokens=tuple(a for a in route.tokens if a != "e")), slab, dtype)

    monkeypatch.setattr(blocks, "give_back", without_sum)
    assert {"d_weight", "d_bias"} <= shards_that_differ(REPLICATED, Strategy(chunk_tokens=3))


def varying(x: jax.Array) -> jax.Array:
    """``x``, which to the type system now differs from device to device."""
    here = sum(lax.axis_index(axis) for axis in AXES)
    return jnp.where(here >= 0, x, jnp.zeros_like(x))


def checked(function, setting, in_specs, out_specs):
    """`engine.over_mesh` with the check on."""

    def run(*shards):
        out = function(*jax.tree.map(varying, shards))
        leaves, tree = jax.tree.flatten(out)
        specs = jax.tree.leaves(out_specs, is_leaf=lambda x: isinstance(x, jax.sharding.PartitionSpec))
        assert len(specs) == len(leaves)
        return tree.unflatten([_invariant(x, spec) for x, spec in zip(leaves, specs, strict=True)])

    return jax.shard_map(run, mesh=setting.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=True)


def _invariant(x: jax.Array, spec) -> jax.Array:
    named = {axis for part in spec if part is not None for axis in ((part,) if isinstance(part, str) else part)}
    rest = tuple(axis for axis in AXES if axis not in named)
    return lax.pmax(varying(x), rest) if rest else varying(x)


@pytest.fixture
def checks(monkeypatch):
    loop, summed = lax.fori_loop, tokens.sum_from_group

    def of_varying(first, end, body, init):
        return loop(first, end, lambda i, carry: jax.tree.map(varying, body(i, carry)), jax.tree.map(varying, init))

    monkeypatch.setattr(engine, "over_mesh", checked)
    monkeypatch.setattr(lax, "fori_loop", of_varying)
    monkeypatch.setattr(backward, "sum_from_group", lambda setting, x: varying(summed(setting, x)))
    jax.clear_caches()
    yield
    jax.clear_caches()


@pytest.mark.parametrize("name", CASES)
def test_the_passes_hold_with_the_check_of_varying_axes(checks, name):
    layout, strategy = CASES[name]
    case = make(bias=True)
    assert_same(by_kernel(layout, strategy=strategy)(case), oracle(case))


def test_control_the_check_of_varying_axes_is_on(checks, monkeypatch):
    """What varies and is said not to is refused."""
    monkeypatch.setattr(lax, "pmax", lambda x, axes: x)
    with pytest.raises(ValueError, match=r"varying|replicated|vma|out_specs"):
        by_kernel(REPLICATED, strategy=Strategy(chunk_tokens=2))(make())
