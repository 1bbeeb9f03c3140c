"""The log-prob head against the float64 oracle, over settings drawn at random."""

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from logps_oracle import assert_same, by_kernel, make, oracle

from steptrace_kernels.logps import Layout, Strategy

AXES = ("f", "c", "e")


@st.composite
def layouts(draw):
    """Each axis shards rows, positions, or neither; and the table's vocabulary, its features, or neither."""
    tokens = {axis: draw(st.sampled_from(["batch", "sequence", ""])) for axis in AXES}
    table = {axis: draw(st.sampled_from(["vocab", "embed", "embed", ""])) for axis in AXES}
    order = draw(st.permutations(AXES))

    def those(where, of):
        return tuple(axis for axis in order if of[axis] == where)

    return Layout(those("batch", tokens), those("sequence", tokens), those("vocab", table), those("embed", table))


@st.composite
def strategies(draw):
    return Strategy(
        vocab_axes=tuple(draw(st.permutations(AXES))[: draw(st.integers(0, 3))]),
        vocab_blocks=draw(st.sampled_from([1, 1, 2, 3])),
        prefetch=draw(st.booleans()),
        regather=draw(st.booleans()),
        keep_hidden=draw(st.booleans()),
        axis_by_axis=draw(st.booleans()),
        chunk_tokens=draw(st.integers(1, 6)),
    )


@st.composite
def cases(draw):
    rows, length, features = draw(st.integers(1, 5)), draw(st.integers(1, 9)), draw(st.integers(1, 6))
    seed = draw(st.integers(0, 2**16))
    rng = np.random.default_rng(seed)
    more = {}
    if draw(st.booleans()):
        more["segment_ids"] = np.sort(rng.integers(0, 3, (rows, length)), axis=1).astype(np.int32)
    if draw(st.booleans()):
        more["needed"] = rng.random((rows, length)) < draw(st.sampled_from([0.0, 0.3, 0.9]))
    if draw(st.booleans()):
        more["temperature"] = (rng.random((rows, length)) + 0.5).astype(np.float32)
    more["soft_cap"] = draw(st.sampled_from([None, 2.0]))
    more["logit_scale"] = draw(st.sampled_from([None, 0.5]))
    # The norm of one or two features is all but constant, and its gradient what is left after cancellation.
    more |= {"bias": draw(st.booleans()), "norm": features > 2 and draw(st.booleans())}
    return make(rows, length, features, draw(st.integers(1, 13)), seed=seed, **more)


@pytest.mark.slow
@settings(
    max_examples=10,
    deadline=None,
    derandomize=True,
    # Each case is compiled anew: to shrink one that fails would take longer than all others together.
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(case=cases(), layout=layouts(), strategy=strategies(), orientation=st.sampled_from(["vd", "dv"]))
def test_any_setting_agrees_with_the_oracle(case, layout, strategy, orientation):
    # A small vocabulary makes hard distributions, whose entropy is small and whose gradients cancel.
    found = by_kernel(layout, strategy=strategy, orientation=orientation)(case)
    assert_same(found, oracle(case), tolerance=2e-5)
    jax.clear_caches()
