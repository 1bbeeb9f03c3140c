"""Which collectives a compiled call of the head executes: few, of the right dtype, and none of them needless."""

import re
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from logps_oracle import head_of, make, mesh_222

from steptrace_kernels.logps import Head, Layout, Strategy, logps
from steptrace_kernels.logps.baselines import chunked
from steptrace_kernels.logps.prepare import formula_of, inputs_of

pytestmark = pytest.mark.slow

LAYOUT = Layout(batch=("f", "e"), sequence=("c",), table_embed=("f", "c", "e"))
KINDS = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter")


def compiled(strategy, *, argnums=(0, 1), chunk=8, low=False):
    """The compiled text of gradients of log-prob and entropy, and both; 32 tokens a device."""
    case = make(8, 32, 16, 24)
    head = Head(jnp.asarray(case.weight, jnp.bfloat16)) if low else head_of(case)

    def total(hidden, head):
        out = logps(hidden, case.tokens, head, mesh=mesh_222(), layout=LAYOUT, strategy=strategy, chunk_tokens=chunk)
        return jnp.sum(out.logp) + jnp.sum(out.entropy), out

    return jax.jit(jax.grad(total, argnums=argnums, has_aux=True)).lower(case.hidden, head).compile().as_text()


def collectives(text):
    found = Counter(kind for kind in KINDS for _ in re.findall(rf" {kind}(?:-start)?\(", text))
    return {kind: found[kind] for kind in KINDS}


def test_the_table_is_gathered_once_an_axis_and_its_gradient_scattered_once():
    found = collectives(compiled(Strategy()))
    assert found == {
        "all-gather": 3,
        "all-reduce": 0,
        "all-to-all": 0,
        "collective-permute": 3,
        "reduce-scatter": 3,
    }


def test_control_the_loops_of_the_baseline_gather_and_reduce_the_table_in_each_chunk():
    case = make(8, 32, 16, 24)
    formula = formula_of(case.hidden, head_of(case), None, None, None)
    mesh = mesh_222()
    hidden = jax.device_put(case.hidden, NamedSharding(mesh, PartitionSpec(("f", "e"), "c")))
    weight = jax.device_put(case.weight, NamedSharding(mesh, PartitionSpec(None, ("f", "c", "e"))))

    def total(hidden, weight):
        inputs = inputs_of(jnp.asarray(case.tokens), None, None, 1.0, formula)
        return jnp.sum(chunked(hidden, Head(weight), inputs, formula, 8).logp)

    text = jax.jit(jax.grad(total, argnums=(0, 1))).lower(hidden, weight).compile().as_text()
    body = "".join(part for part in text.split("\n\n") if re.match(r"%?\S*(body|while|region)", part))
    assert collectives(body)["all-reduce"] >= 1


def test_splitting_the_vocabulary_exchanges_statistics_once_and_not_in_each_chunk():
    found = collectives(compiled(Strategy(("c",))))
    # Table and its gradient between features and vocabulary, and the statistics.
    assert found["all-to-all"] == 3
    assert found["reduce-scatter"] == 3
    assert found["all-reduce"] == 0


def test_the_sum_of_a_bfloat16_table_gradient_over_devices_is_in_float32():
    text = compiled(Strategy(), low=True)
    dtypes = set(re.findall(r"= (?:\()?(\w+)\[[\d,]*\]\S* reduce-scatter\(", text))
    assert dtypes == {"f32"}


def test_a_frozen_table_costs_no_scatter_and_no_matmul():
    whole, frozen = compiled(Strategy()), compiled(Strategy(), argnums=0)
    assert collectives(frozen)["reduce-scatter"] == 0
    assert len(re.findall(r" dot\(", frozen)) == len(re.findall(r" dot\(", whole)) - 1


@pytest.mark.parametrize("chunk", [8, 32])
def test_no_array_holds_the_logits_of_more_than_a_chunk(chunk):
    text = compiled(Strategy(), chunk=chunk)
    shapes = {tuple(map(int, dims.split(","))) for dims in re.findall(r"f32\[([\d,]+)\]", text)}
    logits = {shape for shape in shapes if len(shape) == 2 and 24 in shape and 16 not in shape}
    assert max(np.prod(shape) for shape in logits) == chunk * 24
