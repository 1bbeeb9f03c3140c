"""A decoder whose MLPs are mixtures of experts with a finite buffer: an example of a model that may drop tokens."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from steptrace.run.models.attention import attend, packed_mask
from steptrace.run.models.decoder import Block, Decoder
from steptrace.run.models.moe_experts import Experts, MoeConfig

__all__ = ["MoeBlock", "MoeConfig", "MoeDecoder", "Overflow"]


class Overflow(nnx.Variable[Any]):
    """Whether an expert's buffer was too small in any call since `MoeDecoder.watched`: a bool scalar."""


class MoeBlock(Block):
    """One pre-norm block: attention, then a mixture of experts, each added to the residual."""

    def __init__(self, config: MoeConfig, rngs: nnx.Rngs) -> None:
        self.config = config
        dim, dtype = config.dim, jnp.dtype(config.dtype)
        into_residual = nnx.initializers.variance_scaling(1 / (2 * config.layers), "fan_in", "truncated_normal")
        self.attention_norm = nnx.RMSNorm(dim, dtype=dtype, rngs=rngs)
        self.qkv = nnx.Linear(dim, 3 * dim, use_bias=False, dtype=dtype, rngs=rngs)
        self.out = nnx.Linear(dim, dim, use_bias=False, dtype=dtype, kernel_init=into_residual, rngs=rngs)
        self.mlp_norm = nnx.RMSNorm(dim, dtype=dtype, rngs=rngs)
        self.experts = Experts(config, rngs)

    def mix(self, x: jax.Array, attended: jax.Array, real: jax.Array, *, dropless: bool) -> tuple[jax.Array, jax.Array]:
        """The block's output [rows, length, dim], and whether the buffer was too small.

        Args:
          x: [rows, length, dim].
          attended: attended values of all heads.
          real: bool [rows, length], False on padding.
          dropless: see `Experts`.
        """
        x = x + self.out(attended.reshape(x.shape))
        flat = self.mlp_norm(x).reshape(-1, x.shape[-1])
        mixed, overflow = self.experts(flat, real.reshape(-1), dropless=dropless)
        return x + mixed.reshape(x.shape), overflow

    def combine(self, x: jax.Array, attended: jax.Array) -> jax.Array:
        """As `mix`, for sampling, where nothing may be dropped: nobody would run it again."""
        return self.mix(x, attended, jnp.ones(x.shape[:2], bool), dropless=True)[0]


class MoeDecoder(Decoder):
    """A `Decoder` with mixtures of experts.

    Packed rows go through finite buffers, and tokens may be dropped; in the mode of `as_dropless` none is. Both modes
    have the same parameters, and where nothing overflows the same results. Sampling never drops.

    Args:
      config: its sizes.
      seed: seed of the initial parameters; the same seed gives the same parameters.
    """

    def __init__(self, config: MoeConfig, seed: int = 0) -> None:
        rngs = nnx.Rngs(seed)
        self.config = config
        self.dropless = False
        table = nnx.initializers.normal(config.dim**-0.5)
        self.embedding = nnx.Param(table(rngs.params(), (config.vocab_size, config.dim), jnp.float32))
        self.blocks = nnx.List([MoeBlock(config, rngs) for _ in range(config.layers)])
        self.final_norm = nnx.RMSNorm(config.dim, dtype=jnp.dtype(config.dtype), rngs=rngs)
        self.head_kernel = nnx.Param(table(rngs.params(), (config.dim, config.vocab_size), jnp.float32))

    def hidden(self, tokens: jax.Array, positions: jax.Array, segment_ids: jax.Array) -> jax.Array:
        """As `Decoder.hidden`; a watched model notes whether a buffer was too small."""
        normed, overflow = self.hidden_and_overflow(tokens, positions, segment_ids)
        if hasattr(self, "overflow"):
            self.overflow[...] = self.overflow[...] | overflow
        return normed

    def hidden_and_overflow(
        self, tokens: jax.Array, positions: jax.Array, segment_ids: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Final hidden states of packed rows, and a bool scalar: whether a buffer was too small in some block."""
        angles, mask, real = self._angles(positions), packed_mask(segment_ids), segment_ids != 0
        x, overflow = self._embed(tokens), jnp.zeros((), bool)
        for block in self.blocks:
            query, key, value = block.project(x, angles)
            x, over = block.mix(x, attend(query, key, value, mask), real, dropless=self.dropless)
            overflow = overflow | over
        normed: jax.Array = self.final_norm(x)
        return normed, overflow

    def as_dropless(self) -> MoeDecoder:
        """The same parameters, for a model that never drops."""
        twin: MoeDecoder = nnx.merge(*nnx.split(self))
        twin.dropless = True
        return twin

    def watched(self) -> MoeDecoder:
        """The same parameters, for a model that notes from here on whether its buffers were too small."""
        twin: MoeDecoder = nnx.merge(*nnx.split(self))
        twin.overflow = Overflow(jnp.zeros((), bool))
        return twin

    def overflowed(self) -> jax.Array:
        """A bool scalar: whether a buffer of this watched model was too small in any call."""
        flag: jax.Array = self.overflow[...]
        return flag
