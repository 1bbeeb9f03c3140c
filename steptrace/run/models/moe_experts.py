"""A mixture of experts: top-k routing into a buffer that holds so many tokens of each expert, and no more."""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx

from steptrace.diag.rollout import DecoderConfigError
from steptrace.run.models.decoder import DecoderConfig


@dataclass(frozen=True, slots=True)
class MoeConfig(DecoderConfig):
    """Sizes of a `moe.MoeDecoder`; ``mlp_ratio`` is that of one expert.

    Attributes:
      experts: experts of a block.
      top_k: experts that a token goes to.
      capacity_factor: slots of the buffer over the token's choices; 1 fits only where all experts get equally many.

    Raises:
      DecoderConfigError: ST470, the sizes do not fit together.
    """

    experts: int = 4
    top_k: int = 2
    capacity_factor: float = 1.5

    def __post_init__(self) -> None:
        DecoderConfig.__post_init__(self)  # super() does not know the class that slots=True has made
        if not 1 <= self.top_k <= self.experts:
            raise DecoderConfigError(f"top_k is {self.top_k}, it must be between 1 and the {self.experts} experts")
        if not 0 < self.capacity_factor < math.inf:
            raise DecoderConfigError(f"capacity_factor is {self.capacity_factor}, it must be above 0 and finite")

    def capacity(self, tokens: int) -> int:
        """Slots that an expert has in the buffer for so many tokens; a token takes at most one of them."""
        return min(tokens, max(1, math.ceil(tokens * self.top_k * self.capacity_factor / self.experts)))

    def rounds(self, tokens: int) -> int:
        """How often the buffer is filled before every token has had its turn, even if all chose the same expert."""
        return math.ceil(tokens / self.capacity(tokens))


class Experts(nnx.Module):
    """Gated MLPs (SwiGLU, Shazeer 2020), of which each token goes through ``top_k``.

    Routing and the buffer of fixed capacity follow Lepikhin et al. 2020, "GShard"; the gates are a softmax over the
    chosen experts alone, as in Jiang et al. 2024, "Mixtral of Experts". First choices go before second ones,
    and among equals the earlier token goes first.

    Without ``dropless`` the buffer is filled once, and whoever finds no slot is left out of that expert. With it the
    buffer is filled again until everyone has had a turn. The first round is the whole of the other program, and rounds
    that nobody needs add zeros.
    """

    def __init__(self, config: MoeConfig, rngs: nnx.Rngs) -> None:
        self.config = config
        experts, dim, hidden = config.experts, config.dim, config.mlp_hidden
        axes = {"in_axis": -2, "out_axis": -1, "batch_axis": 0}
        scaled = nnx.initializers.variance_scaling
        into = scaled(1.0, "fan_in", "truncated_normal", **axes)
        into_residual = scaled(1 / (2 * config.layers), "fan_in", "truncated_normal", **axes)
        self.router = nnx.Linear(dim, experts, use_bias=False, rngs=rngs)
        self.gate_up = nnx.Param(into(rngs.params(), (experts, dim, 2 * hidden), jnp.float32))
        self.down = nnx.Param(into_residual(rngs.params(), (experts, hidden, dim), jnp.float32))

    def __call__(self, x: jax.Array, real: jax.Array, *, dropless: bool) -> tuple[jax.Array, jax.Array]:
        """Mix the experts' outputs.

        Args:
          x: [tokens, dim].
          real: bool [tokens], False on padding, which takes no slot and gets 0.
          dropless: fill the buffer as often as it takes.

        Returns:
          [tokens, dim] in the dtype of ``x``, and a bool scalar: whether someone found no slot the first time.
        """
        tokens, k = x.shape[0], self.config.top_k
        capacity = self.config.capacity(tokens)
        scores, chosen = jax.lax.top_k(self.router(x.astype(jnp.float32)), k)
        gates = jax.nn.softmax(scores, axis=-1).astype(x.dtype).T.reshape(-1, 1)
        expert, wanted = chosen.T.reshape(-1), jnp.tile(real, k)
        place = places(expert, wanted, self.config.experts)
        copies, mixed = jnp.tile(x, (k, 1)), jnp.zeros_like(x)
        for turn in range(self.config.rounds(tokens) if dropless else 1):
            seat = place - turn * capacity
            fits = wanted & (seat >= 0) & (seat < capacity)
            out = self._through(copies, jnp.where(fits, expert * capacity + seat, self.config.experts * capacity))
            mixed = mixed + (gates * out).reshape(k, tokens, -1).sum(axis=0)
        return mixed, jnp.any(wanted & (place >= capacity))

    def _through(self, copies: jax.Array, slot: jax.Array) -> jax.Array:
        """Outputs [choices, dim] of copies [choices, dim] by their slots [choices]; 0 for a slot outside the buffer.

        A slot holds one copy, and a copy has one slot: no gradient is a sum in an order that the device chooses.
        """
        experts, count = self.config.experts, copies.shape[0]
        size = experts * self.config.capacity(count // self.config.top_k)
        holder = jnp.full(size, count).at[slot].set(jnp.arange(count), mode="drop")
        buffer = copies.at[holder].get(mode="fill", fill_value=0).reshape(experts, size // experts, -1)
        gate, up = jnp.split(jnp.einsum("ecd,edh->ech", buffer, self.gate_up[...].astype(copies.dtype)), 2, axis=-1)
        out = jnp.einsum("ech,ehd->ecd", nnx.silu(gate) * up, self.down[...].astype(copies.dtype))
        picked: jax.Array = out.reshape(size, -1).at[slot].get(mode="fill", fill_value=0)
        return picked


def places(expert: jax.Array, wanted: jax.Array, experts: int) -> jax.Array:
    """How many earlier choices that count went to the same expert: int32 [choices].

    Args:
      expert: int [choices].
      wanted: bool [choices], False for choices that do not count.
      experts: how many there are.
    """
    taken = jax.nn.one_hot(expert, experts, dtype=jnp.int32) * wanted[:, None]
    return jnp.take_along_axis(jnp.cumsum(taken, axis=0) - taken, expert[:, None], axis=1)[:, 0]
