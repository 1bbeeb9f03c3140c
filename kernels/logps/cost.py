"""What a setting costs, in closed form: bytes that a device sends, and memory it needs beside arguments and results.

The formulas follow the engine collective by collective, and count as XLA's all-gathers and their like are counted: of
an all-gather what a device gets from others, of a reduce-scatter and an all-to-all what it sends to them, of an
all-reduce both. What is left out is small: shifts of what is given by token beside the tokens, sums of a few numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from steptrace_kernels.logps.mesh import count, sizes
from steptrace_kernels.logps.setting import Setting
from steptrace_kernels.logps.tile import Stats
from steptrace_kernels.logps.vocab import Route


@dataclass(frozen=True)
class Parts:
    """What of a call its setting does not tell.

    Attributes:
      hidden_bytes: bytes of a number of the hidden states.
      bias_bytes: of the bias; 0 where there is none.
      norm: whether there is a norm.
      one_pass: whether the loss is taken in one pass.
      gradient: whether there is a backward pass.
      needed: the largest share of a device's tokens that is needed.
    """

    hidden_bytes: int
    bias_bytes: int = 0
    norm: bool = False
    one_pass: bool = False
    gradient: bool = True
    needed: float = 1.0


@dataclass(frozen=True)
class Cost:
    """Of one forward and backward pass, on each device.

    Attributes:
      table: bytes sent of the table and its gradient, with those of the bias.
      hidden: bytes sent of hidden states and their gradient.
      tokens: bytes sent of what belongs to tokens: targets, statistics of the softmax, pulls, results shifted by one.
      memory: bytes needed at the same time: of the slab and its gradient, of a tile of logits, of hidden states.
    """

    table: float
    hidden: float
    tokens: float
    memory: float

    @property
    def bytes(self) -> float:
        """All that is sent."""
        return self.table + self.hidden + self.tokens


def cost(setting: Setting, parts: Parts) -> Cost:
    """The cost of ``setting``."""
    return Cost(_table(setting, parts), _hidden(setting, parts), _tokens(setting, parts), _memory(setting, parts))


def _table(setting: Setting, parts: Parts) -> float:
    sums = setting.formula.sums.itemsize
    wire = setting.formula.wire(setting.weight_dtype).itemsize
    home = sums if parts.one_pass else setting.weight_dtype.itemsize
    gathers = 1 if not parts.gradient or parts.one_pass or setting.keeps_slab else 2
    sent = gathers * fetched(setting.table_route, setting.layout.table_embed) * wire
    if parts.gradient:
        sent += returned(setting.table_route, sums, home)
    if parts.bias_bytes:
        sent += gathers * fetched(setting.bias_route, ()) * parts.bias_bytes
        sent += returned(setting.bias_route, sums, sums) if parts.gradient else 0
    return sent


def fetched(route: Route, stored_embed: tuple[str, ...]) -> float:
    """Numbers that a device receives, or exchanges, for the whole slab to be fetched once, block by block."""
    numbers = route.piece * route.devices(route.cut) * -(-route.features // route.devices(stored_embed))
    sent = 0.0
    swapped, taken = _exchanged(route)
    numbers //= taken
    sent += numbers * _share(swapped)
    for stored in (route.stored_embed, route.stored_vocab):
        for group in route.stages(stored):
            sent += numbers * (route.devices(group) - 1)
            numbers *= route.devices(group)
    return route.blocks * sent


def returned(route: Route, sums: int, home: int) -> float:
    """Bytes sent for the gradient of the slab to come home: in a dtype of ``sums`` bytes while it is summed."""
    numbers = route.lanes * -(-route.features // route.devices(route.stored_embed)) * route.devices(route.stored_embed)
    sent = 0.0
    for stored in (route.stored_vocab, route.stored_embed):
        for group in reversed(route.stages(stored)):
            adding = route.devices(tuple(axis for axis in group if axis in route.tokens))
            numbers = numbers * adding // route.devices(group)
            sent += numbers * _share(adding) * sums
            numbers //= adding
    rest = [a for a in route.tokens if a not in (*route.split, *route.stored_vocab, *route.stored_embed)]
    sent += 2 * numbers * _share(route.devices(tuple(rest))) * sums
    swapped, taken = _exchanged(route)
    sent += numbers * (_share(swapped) + taken - 1) * home
    return route.blocks * sent


def _exchanged(route: Route) -> tuple[int, int]:
    """Devices with which rows are exchanged for features, and those of which each takes its own part."""
    swapped = route.devices(tuple(axis for axis in route.cut if axis in route.stored_embed))
    return swapped, route.devices(route.cut) // swapped


def _hidden(setting: Setting, parts: Parts) -> float:
    some = _places(setting, parts.needed) * setting.features  # chunk by chunk
    every = _places(setting) * setting.features
    numbers, pulled = every if setting.gathers_once else some, every if setting.resident else some
    wire = _wire(setting, parts)
    once = not parts.gradient or parts.one_pass or setting.gathers_once or _chunks(setting, parts.needed) == 1
    sent = (1 if once else 2) * numbers * (setting.members - 1) * wire
    if parts.gradient:
        summed = setting.hidden_sums.itemsize
        sent += pulled * (setting.members - 1) * summed
        sent += 2 * pulled * _share(count(sizes(setting.mesh), setting.idle)) * summed
    if parts.gradient and parts.norm:
        sent += 2 * setting.features * _share(count(sizes(setting.mesh), setting.layout.tokens)) * _sums(setting)
    return sent


def _tokens(setting: Setting, parts: Parts) -> float:
    places, members, axis_sizes = _places(setting), setting.members, sizes(setting.mesh)
    stats = members * len(Stats._fields) * places * _sums(setting)
    sent = places * (members - 1) * 4.0
    sent += sum(stats * _share(axis_sizes[axis]) for axis in setting.group)
    sent += stats * (count(axis_sizes, setting.idle) - 1)
    if count(axis_sizes, setting.layout.sequence) > 1:
        rows = setting.shape[0] // count(axis_sizes, setting.layout.batch)
        shifts = 2 if parts.gradient and not parts.one_pass else 1
        sent += rows * (4 + 3 * shifts * _sums(setting))
    if parts.gradient:
        sent += places * (members - 1) * _PULLS * _sums(setting)
    return sent


def _memory(setting: Setting, parts: Parts) -> float:
    """What is alive while the backward pass goes through a block; or the forward pass, where there is no backward."""
    sums, features = _sums(setting), setting.features
    lanes = setting.table_route.lanes
    wire = setting.formula.wire(setting.weight_dtype).itemsize
    ahead = 2 if setting.strategy.prefetch and setting.strategy.vocab_blocks > 2 else 1
    tile = _TILES * setting.members * setting.chunk * lanes * sums
    slab = ahead * lanes * features * (wire + (sums if parts.gradient else 0))
    rows = setting.members * _places(setting)
    hidden = rows * features * _wire(setting, parts) if setting.gathers_once else 0
    hidden += rows * features * sums if setting.resident and parts.gradient else 0
    moved = lanes * features * sums if parts.gradient else lanes * features * wire
    return slab + max(tile, moved) + hidden + 2 * len(Stats._fields) * rows * sums


_PULLS = 5
"""Numbers that the backward pass needs of a token: the fields of ``tile.Pull``."""

_ROUNDING = 1e-6
"""Of a token: 100 tokens times 0.07 are 7, and not a little more."""

_TILES = 2
"""Arrays of the size of a tile's logits that are alive together."""


def _places(setting: Setting, needed: float = 1.0) -> int:
    """Tokens that a device takes, at most; filled up to whole chunks where only needed ones are taken."""
    return _chunks(setting, needed) * setting.chunk if setting.skips else setting.local_tokens


def _chunks(setting: Setting, needed: float = 1.0) -> int:
    tokens = math.ceil(setting.local_tokens * needed - _ROUNDING) if setting.skips else setting.local_tokens
    return math.ceil(tokens / setting.chunk)


def _sums(setting: Setting) -> int:
    return setting.formula.sums.itemsize


def _wire(setting: Setting, parts: Parts) -> int:
    """Bytes of a number of the hidden states on their way."""
    return min(parts.hidden_bytes, setting.formula.compute.itemsize)


def _share(devices: int) -> float:
    return (devices - 1) / devices
