"""The log-prob head against the float64 oracle: each way of splitting the work, and of storing the table."""

import numpy as np
import pytest
from logps_oracle import assert_same, by_kernel, make, oracle, valid

from steptrace_kernels.logps import Layout, Strategy

PACKED = np.array([[1, 1, 1, 2, 2, 3, 3, 3, 0], [0, 0, 1, 1, 1, 1, 1, 1, 1], [1, 2, 2, 2, 2, 2, 2, 3, 3]], np.int32)
IDLE = Layout(batch=("f",), sequence=("c",), table_embed=("f", "e"))
FULL = Layout(batch=("f", "e"), sequence=("c",), table_embed=("f", "c", "e"))
ROWS = Layout(batch=("f",), sequence=("c", "e"), table_vocab=("c", "e"), table_embed=("f",))

SLOW = pytest.mark.slow


def uneven(**more):
    """Neither rows, length, features nor vocabulary divide over the mesh; everything else is there as well."""
    rng = np.random.default_rng(5)
    more = {
        "segment_ids": PACKED,
        "needed": rng.random((3, 9)) < 0.7,
        "temperature": (rng.random((3, 9)) + 0.5).astype(np.float32),
        "soft_cap": 3.0,
        "logit_scale": 0.8,
    } | more
    return make(3, 9, 7, 11, bias=True, norm=True, **more)


def test_control_the_oracle_agrees_with_differences_of_itself():
    case, step = uneven(dtype=np.float64), 1e-6
    found = oracle(case)

    def total(changed):
        values = oracle(changed)
        return sum(np.sum(w * values[name]) for w, name in zip(case.by, ("logp", "entropy", "lse"), strict=True))

    row, token = np.argwhere(valid(case))[3]
    for name, at in (("hidden", (row, token - 1, 2)), ("weight", (4, 5)), ("bias", (3,)), ("scale", (6,))):
        up, down = np.array(getattr(case, name)), np.array(getattr(case, name))
        up[at] += step
        down[at] -= step
        slope = (total(case.but(**{name: up})) - total(case.but(**{name: down}))) / (2 * step)
        assert slope == pytest.approx(found[f"d_{name}"][at], abs=1e-6)
        assert abs(slope) > 1e-3


@pytest.mark.parametrize(
    ("layout", "strategy", "orientation"),
    [
        pytest.param(FULL, Strategy(chunk_tokens=3), "vd", id="table gathered, remainder chunk", marks=SLOW),
        pytest.param(FULL, Strategy(("c",)), "dv", id="vocabulary split over the sequence's axis", marks=SLOW),
        pytest.param(IDLE, Strategy(("e",), vocab_blocks=3, prefetch=True), "dv", id="blocks with prefetch"),
    ],
)
def test_whole_rows(layout, strategy, orientation):
    case = make(vocab=22, bias=True)
    assert_same(by_kernel(layout, strategy=strategy, orientation=orientation)(case), oracle(case))


def test_everything_at_once_on_sizes_that_do_not_divide():
    case = uneven()
    assert_same(by_kernel(IDLE, strategy="auto", chunk_tokens=2)(case), oracle(case))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "strategy", "orientation"),
    [
        (FULL, Strategy(axis_by_axis=False, chunk_tokens=5), "dv"),
        (FULL, Strategy(("e", "c", "f"), chunk_tokens=2), "vd"),
        (FULL, Strategy(("e", "c"), keep_hidden=True, chunk_tokens=2), "vd"),
        (IDLE, Strategy(("c", "e"), vocab_blocks=2, chunk_tokens=1), "vd"),
        (ROWS, Strategy(("f", "e"), chunk_tokens=2), "dv"),
        (ROWS, Strategy(("e",), vocab_blocks=4, prefetch=True, chunk_tokens=1), "vd"),
        (Layout(sequence=("c", "f"), table_embed=("e",)), Strategy(("f",), chunk_tokens=3), "vd"),
    ],
)
def test_everything_at_once(layout, strategy, orientation):
    case = uneven()
    assert_same(by_kernel(layout, strategy=strategy, orientation=orientation)(case), oracle(case))
