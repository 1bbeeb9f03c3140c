"""The slab in blocks: loaded, computed with, and its gradient stored, one after the other or overlapping."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax import lax

from steptrace_kernels.logps.head import Head
from steptrace_kernels.logps.setting import Setting
from steptrace_kernels.logps.tile import Slab
from steptrace_kernels.logps.vocab import fetch, give_back, lane_ids, pack, unpack

Compute = Callable[[Any, Slab], tuple[Any, Any]]
Store = Callable[[Any, Any, jax.Array | int], Any]


def loader(setting: Setting, head: Head) -> Callable[[jax.Array | int], Slab]:
    """A function that gathers block ``j`` of the slab, from this device's shards of the head."""
    route, plain = setting.table_route, setting.bias_route
    weight = pack(route, stored_as_rows(setting, head.weight.astype(setting.formula.wire(head.weight.dtype))))
    bias = None if head.bias is None else pack(plain, head.bias[:, None])

    def load(block: jax.Array | int) -> Slab:
        return Slab(
            fetch(route, weight, block),
            None if bias is None else fetch(plain, bias, block)[:, 0],
            lane_ids(route, block),
        )

    return load


def stored_as_rows(setting: Setting, weight: jax.Array) -> jax.Array:
    """A shard of the table as [vocab, features], or back to how it is stored: both are the same transposition."""
    return weight.T if setting.orientation == "dv" else weight


def returned(setting: Setting, weight: jax.Array, bias: jax.Array | None) -> tuple[jax.Array, jax.Array | None]:
    """Gradients of a block of this device's shards from those of the slab's block, summed over devices."""
    one = give_back(setting.table_route, weight, setting.weight_dtype)
    return one, None if bias is None else give_back(setting.bias_route, bias[:, None], bias.dtype)


def shards(setting: Setting, weight: jax.Array, bias: jax.Array | None) -> tuple[jax.Array, jax.Array | None]:
    """Gradients of the shards as they are stored, from those of all their blocks."""
    rows = unpack(setting.table_route, weight)
    whole = None if bias is None else unpack(setting.bias_route, bias)[:, 0]
    return stored_as_rows(setting, rows), whole


def each_block(
    setting: Setting, load: Callable[[jax.Array | int], Slab], compute: Compute, store: Store, carry: Any, stored: Any
) -> tuple[Any, Any]:
    """``carry, y = compute(carry, load(j))`` and ``stored = store(stored, y, j)`` for each block ``j``.

    With prefetch the next block is loaded, and the last one stored, before and not after this one is computed: nothing
    of it depends on them, so that their collectives run meanwhile. No block is loaded or stored twice.
    """
    blocks = setting.strategy.vocab_blocks
    if not setting.strategy.prefetch or blocks < 3:

        def plain(j: jax.Array | int, state: tuple[Any, Any]) -> tuple[Any, Any]:
            carry, y = compute(state[0], load(j))
            return carry, store(state[1], y, j)

        return lax.fori_loop(0, blocks, plain, (carry, stored))

    def overlapped(j: jax.Array | int, state: tuple[Any, Any, Slab, Any]) -> tuple[Any, Any, Slab, Any]:
        carry, stored, slab, y = state
        ahead = load(j + 1)
        stored = store(stored, y, j - 1)
        carry, y = compute(carry, slab)
        return carry, stored, ahead, y

    first, ahead = load(0), load(1)
    carry, y = compute(carry, first)
    carry, stored, last, y = lax.fori_loop(1, blocks - 1, overlapped, (carry, stored, ahead, y))
    stored = store(stored, y, blocks - 2)
    carry, y = compute(carry, last)
    return carry, store(stored, y, blocks - 1)
