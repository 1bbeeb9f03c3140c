"""The baselines of the log-prob head against the oracle: they are fallback and yardstick, so they must be right too."""

import numpy as np
import pytest
from logps_oracle import assert_same, by_kernel, make, mesh_222, oracle

from steptrace_kernels.logps import Layout, logps
from steptrace_kernels.logps.baselines import SEED, chunked, fixed
from steptrace_kernels.logps.prepare import formula_of, inputs_of

LAYOUT = Layout(batch=("f", "e"), sequence=("c",), table_embed=("f", "c", "e"))


def as_logps(baseline, **more):
    """A baseline, called as ``logps`` is."""

    def call(hidden, tokens, head, *, mesh, layout, return_lse, soft_cap, logit_scale, **arrays):
        formula = formula_of(hidden, head, soft_cap, logit_scale, None)
        arrays = {"segment_ids": None, "needed": None, "temperature": 1.0} | arrays
        return baseline(hidden, head, inputs_of(tokens, **arrays, formula=formula), formula, 3, **more)

    return call


def full():
    rng = np.random.default_rng(4)
    return make(
        *(4, 10, 8, 11),
        bias=True,
        norm=True,
        segment_ids=np.sort(rng.integers(0, 4, (4, 10)), axis=1).astype(np.int32),
        needed=rng.random((4, 10)) < 0.7,
        temperature=(rng.random((4, 10)) + 0.5).astype(np.float32),
        soft_cap=3.0,
        logit_scale=0.7,
    )


@pytest.mark.slow
@pytest.mark.parametrize("orientation", ["vd", "dv"])
def test_chunked_by_the_compiler(orientation):
    case = full()
    assert_same(by_kernel(LAYOUT, orientation=orientation, function=as_logps(chunked))(case), oracle(case))


@pytest.mark.slow
def test_the_head_gathered_once_and_chunks_inside_each_shard():
    case, baseline = full(), as_logps(fixed, mesh=mesh_222(), layout=LAYOUT)
    assert_same(by_kernel(LAYOUT, function=baseline)(case), oracle(case))


@pytest.mark.slow
def test_the_plainest_setting_of_the_kernel():
    case = make(4, 8, 8, 12)
    assert_same(by_kernel(LAYOUT, function=logps, strategy=SEED, chunk_tokens=3)(case), oracle(case))
