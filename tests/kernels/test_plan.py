"""Plans of the log-prob head: what is chosen and why, from shapes alone. No device is needed for these."""

import logging

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType

from steptrace_kernels.logps import CannotRunError, Head, Layout, LogpsError, Reason, Strategy, fallback, logps, plan
from steptrace_kernels.logps.choose import choose

BIG = {"fsdp": 32, "context": 4, "expert": 2}
SMALL = {"fsdp": 2, "context": 2, "expert": 2}
FULL = Layout(("fsdp", "expert"), ("context",), (), ("fsdp", "context", "expert"))
IDLE = Layout(("fsdp",), ("context",), (), ("fsdp", "expert"))


def sizes(rows, length, features, vocab, dtype="float32"):
    return jax.ShapeDtypeStruct((rows, length, features), dtype), Head(jax.ShapeDtypeStruct((vocab, features), dtype))


LARGE = sizes(64, 65536, 4096, 248320, "bfloat16")
FEW = sizes(64, 1024, 4096, 248320, "bfloat16")
L1K = sizes(4, 1024, 320, 7168)


def test_bytes_by_hand():
    found = plan(*sizes(4, 8, 16, 32), mesh=SMALL, layout=FULL, strategy=Strategy(("context",)), chunk_tokens=2).cost
    # A shard of the table is 64 numbers: half of it goes to the neighbour, then it grows fourfold; and so back again.
    assert found.table == 2 * (32 + 3 * 64) * 4
    # Two gathers of four tokens of 16 numbers, one sum of theirs.
    assert found.hidden == 3 * 4 * 16 * 4
    # Targets; four statistics of two devices' tokens, half of which leave; pulls; shifts of one row.
    assert found.tokens == 4 * 4 + (2 * 4 * 4 / 2) * 4 + 4 * 5 * 4 + (1 + 3 + 3) * 4


def test_bytes_of_the_whole_table_are_those_of_a_gather_and_a_scatter():
    found = plan(*L1K, mesh=SMALL, layout=FULL, strategy=Strategy(axis_by_axis=False)).cost
    assert found.table == 2 * 7168 * 320 * 4 * 7 / 8
    assert found.hidden == 0


@pytest.mark.parametrize(
    ("given", "layout", "axes"),
    [
        (LARGE, FULL, ("context",)),
        (FEW, FULL, ("fsdp",)),
        (sizes(32, 65536, 4096, 248320, "bfloat16"), IDLE, ("context", "expert")),
    ],
)
def test_the_split_is_near_the_square_root_of_vocabulary_per_token(given, layout, axes):
    found = plan(*given, mesh=BIG, layout=layout)
    assert found.strategy.vocab_axes == axes
    assert all(found.cost.bytes <= other.cost.bytes for other in found.refused)


def test_a_large_run_sends_less_than_half_of_the_plainest_setting():
    best, plainest = (plan(*LARGE, mesh=BIG, layout=FULL, strategy=s) for s in ("auto", Strategy()))
    assert best.cost.bytes < 0.46 * plainest.cost.bytes
    assert 6.0e9 < plainest.cost.bytes < 6.2e9


@pytest.mark.parametrize("memory_limit", [None, 9 * 2**30, 2**30])
def test_an_axis_that_shards_no_tokens_splits_the_vocabulary_always(memory_limit):
    found = plan(*LARGE, mesh=BIG, layout=IDLE, memory_limit=memory_limit)
    assert all("expert" in one.strategy.vocab_axes for one in (found, *found.refused))
    assert len(found.refused) == 3
    assert "expert: shards no tokens" in str(found)


def test_axes_of_one_device_are_left_out():
    found = plan(*L1K, mesh={"fsdp": 4, "context": 1, "expert": 1}, layout=FULL)
    assert len(found.refused) == 1
    assert found.strategy.vocab_axes in ((), ("fsdp",))


def test_tokens_at_a_time_are_the_callers_where_the_strategy_leaves_them_open():
    def planned(of_strategy, of_call):
        strategy = Strategy(("context",), chunk_tokens=of_strategy)
        return plan(*L1K, mesh=SMALL, layout=FULL, strategy=strategy, chunk_tokens=of_call).cost

    assert planned(8, 128) == planned(8, None) != planned(128, None) == planned(None, 128)


def test_a_limit_of_memory_is_kept_with_more_bytes():
    free = plan(*LARGE, mesh=BIG, layout=FULL)
    tight = plan(*LARGE, mesh=BIG, layout=FULL, memory_limit=int(free.cost.memory * 0.8))
    assert tight.cost.memory <= 0.8 * free.cost.memory
    assert tight.cost.bytes > free.cost.bytes
    assert tight.strategy.vocab_blocks > 1 or tight.strategy.vocab_axes != free.strategy.vocab_axes
    assert "does not fit into" in str(plan(*LARGE, mesh=BIG, layout=FULL, memory_limit=2**29))


def test_the_chosen_of_those_that_fit_sends_least():
    limit = 3 * 2**30
    found = plan(*LARGE, mesh=BIG, layout=FULL, memory_limit=limit)
    fitting = [one.cost.bytes for one in found.refused if one.cost.memory <= limit]
    assert fitting
    assert found.cost.bytes <= min(fitting)


def test_nothing_that_fits_is_refused():
    with pytest.raises(LogpsError, match=r"no strategy fits into 1\.00 MiB: the least of them takes"):
        plan(*LARGE, mesh=BIG, layout=FULL, memory_limit=2**20)


def test_a_loss_in_one_pass_takes_no_blocks_and_keeps_nothing():
    found = plan(*LARGE, mesh=BIG, layout=FULL, one_pass=True)
    assert all(one.strategy.vocab_blocks == 1 and not one.strategy.keep_hidden for one in (found, *found.refused))
    twice = plan(*LARGE, mesh=BIG, layout=FULL, strategy=Strategy(found.strategy.vocab_axes))
    assert found.cost.hidden == pytest.approx(twice.cost.hidden * 6 / 8)  # of 2 + 2 + 4 bytes a number


def test_values_alone_send_less():
    both, values = (plan(*L1K, mesh=SMALL, layout=FULL, gradient=g, strategy=Strategy()) for g in (True, False))
    assert values.cost.table == both.cost.table / 2


def test_by_hand_it_is_compared_with_what_would_have_been_chosen():
    found = plan(*L1K, mesh=SMALL, layout=FULL, strategy=Strategy())
    best = plan(*L1K, mesh=SMALL, layout=FULL)
    assert found.strategy == Strategy()
    assert found.refused[0].strategy == best.strategy
    assert found.refused[0].why == "would have been chosen"
    assert f"given by hand; sends {found.cost.bytes / best.cost.bytes:.2f} times" in str(found)


@pytest.mark.parametrize(
    ("given", "changes", "words"),
    [
        (sizes(4, 8, 16, 32), {"memory_limit": 0}, "memory_limit must be a number above 0"),
        (sizes(4, 8, 16, 32), {"memory_limit": float("nan")}, "memory_limit must be a number above 0"),
        (sizes(4, 8, 16, 32), {"memory_limit": "16G"}, "memory_limit must be a number above 0"),
        (sizes(4, 8, 16, 32), {"mesh": SMALL | {"fsdp": 0}}, "the axis 'fsdp' must have at least 1 device, not 0"),
        (sizes(4, 8, 16, 32), {"mesh": SMALL | {"fsdp": -2}}, "the axis 'fsdp' must have at least 1 device"),
        (sizes(4, 8, 16, 32), {"layout": Layout("fsdp")}, "batch must be a tuple of names"),
        (sizes(4, 8, 16, 32), {"one_pass": True, "strategy": Strategy((), 2)}, "vocab_blocks must be 1"),
        (sizes(4, 8, 16, 32), {"hidden_sums": "int8"}, "hidden_sums must be one of"),
        (sizes(4, 8, 16, 32), {"needed": 0.0}, "needed must be True, False, or a share above 0 and at most 1, not 0.0"),
        (sizes(4, 8, 16, 32), {"needed": 1.5}, "needed must be True, False, or a share"),
        (sizes(4, 8, 16, 32), {"needed": "half"}, "needed must be True, False, or a share"),
        (sizes(4, 0, 16, 32), {}, r"no token to plan for: hidden is \[4, 0, 16\]"),
        ((sizes(4, 8, 32, 1)[0], sizes(1, 1, 16, 32)[1]), {}, "is its orientation the other one"),
        ((jax.ShapeDtypeStruct((4, 16), "float32"), sizes(1, 1, 16, 32)[1]), {}, "hidden must be"),
    ],
)
def test_what_cannot_be_planned_is_refused(given, changes, words):
    with pytest.raises(LogpsError, match=words):
        plan(*given, **{"mesh": SMALL, "layout": FULL} | changes)


def test_a_share_of_needed_tokens_may_be_any_number_and_is_counted_in_whole_tokens():
    def bytes_of(needed):  # each device has 100 tokens, in chunks of 7
        given = {"mesh": SMALL, "layout": FULL, "strategy": Strategy(("fsdp",)), "chunk_tokens": 7}
        return plan(*sizes(8, 100, 16, 32), needed=needed, **given).cost.bytes

    assert bytes_of(np.True_) == bytes_of(True) == bytes_of(1.0)
    assert bytes_of(np.False_) == bytes_of(False)
    assert bytes_of(np.float32(0.5)) == bytes_of(0.5) < bytes_of(True)
    assert 100 * 0.07 > 7  # by rounding
    assert bytes_of(0.07) == bytes_of(0.061) < bytes_of(0.08)  # one chunk, and two


def test_a_plan_says_what_why_and_why_not():
    lines = str(plan(*L1K, mesh=SMALL, layout=FULL, chunk_tokens=32)).splitlines()
    assert lines[0].startswith("vocabulary over context, expert, hidden states kept: 8.016 MB a device (table 4.014,")
    assert lines[1] == "  sends least of the 8 sets of axes"
    assert lines[3] == "not chosen:"
    assert len(lines) == 4 + 7
    assert lines[-1].startswith("  vocabulary whole: 16.056 MB")
    assert lines[-1].endswith("sends 2.00 times as much")


@pytest.mark.parametrize(
    ("mesh", "layout", "reason", "detail"),
    [
        (None, FULL, Reason.NO_MESH, ""),
        (SMALL, None, Reason.NO_LAYOUT, ""),
        (
            AbstractMesh((2, 2, 2), tuple(SMALL), axis_types=(AxisType.Manual, AxisType.Auto, AxisType.Auto)),
            FULL,
            Reason.INSIDE_SHARD_MAP,
            "fsdp",
        ),
    ],
)
def test_why_the_kernel_cannot_run(mesh, layout, reason, detail):
    found = plan(*L1K, mesh=mesh, layout=layout)
    assert found.strategy is found.cost is None
    assert found.fallback_reason == fallback.Fallback(reason, detail)
    assert reason.value in str(found)


def test_an_idle_axis_and_sizes_that_do_not_divide_are_no_reasons():
    assert plan(*sizes(3, 7, 5, 11), mesh=SMALL, layout=IDLE).fallback_reason is None


def traced(**settings):
    """The call as it is traced, which is when it chooses."""
    hidden = np.ones((2, 4, 8), np.float32)
    head = Head(np.ones((12, 8), np.float32))
    return jax.eval_shape(lambda: logps(hidden, np.zeros((2, 4), np.int32), head, **settings))


def test_the_log_tells_a_fallback_once_and_an_error_always(caplog):
    fallback._tell.cache_clear()
    with caplog.at_level(logging.INFO, "steptrace_kernels.logps"):
        traced(mode="fallback")
        traced(mode="fallback")
    assert [record.message for record in caplog.records] == [
        f"log-probs by the chunked head without shard_map: {Reason.NO_MESH.value}"
    ]
    for _ in range(2):
        with pytest.raises(CannotRunError) as caught:
            traced()
        assert caught.value.fallback.reason is Reason.NO_MESH


def test_the_log_tells_a_choice_once(caplog):
    choose.cache_clear()
    mesh = jax.make_mesh((1,), ("fsdp",))
    with caplog.at_level(logging.INFO, "steptrace_kernels.logps"):
        for _ in range(2):
            traced(mesh=mesh, layout=Layout(("fsdp",)))
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "log-probs of 8 tokens a device, vocabulary whole"
    ]


def test_control_the_log_tells_another_choice(caplog):
    choose.cache_clear()
    with caplog.at_level(logging.INFO, "steptrace_kernels.logps"):
        plan(*L1K, mesh=SMALL, layout=FULL)
        plan(*L1K, mesh=SMALL, layout=IDLE)
        plan(*L1K, mesh=SMALL, layout=IDLE)
    assert len(caplog.records) == 2
