"""A small decoder-only transformer: rotary positions, RMSNorm, SwiGLU, packed rows and cached decoding."""

from __future__ import annotations

from dataclasses import dataclass

import chex
import jax
import jax.numpy as jnp
from flax import nnx

from steptrace.diag.rollout import DecoderConfigError
from steptrace.run.models.attention import KVCache, attend, packed_mask, rotary_angles, rotate


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Sizes of a :class:`Decoder`.

    Attributes:
      vocab_size: number of token ids.
      dim: features of a token; a multiple of twice the number of heads.
      layers: number of blocks.
      heads: attention heads of a block.
      mlp_ratio: hidden features of the MLP over ``dim``; 8/3 gives a gated MLP the size of a plain one of 4.
      max_length: longest sequence, prompt and completion together, in tokens.
      rope_theta: base of the rotary wavelengths.
      dtype: dtype of the computation; parameters and logits are float32.

    Raises:
      DecoderConfigError: ST470, the sizes do not fit together.
    """

    vocab_size: int
    dim: int = 64
    layers: int = 2
    heads: int = 4
    mlp_ratio: float = 8 / 3
    max_length: int = 256
    rope_theta: float = 10_000.0
    dtype: str = "float32"

    def __post_init__(self) -> None:
        for name in ("vocab_size", "dim", "layers", "heads", "max_length", "mlp_hidden"):
            if getattr(self, name) < 1:
                raise DecoderConfigError(f"{name} is {getattr(self, name)}, it must be at least 1")
        if self.dim % (2 * self.heads):
            raise DecoderConfigError(
                f"dim {self.dim} does not split into {self.heads} heads of an even width",
                help=f"choose dim as a multiple of {2 * self.heads}",
            )

    @property
    def head_dim(self) -> int:
        """Features of one attention head."""
        return self.dim // self.heads

    @property
    def mlp_hidden(self) -> int:
        """Hidden features of the MLP."""
        return round(self.dim * self.mlp_ratio)


class Block(nnx.Module):
    """One pre-norm block: attention, then a gated MLP (SwiGLU, Shazeer 2020), each added to the residual."""

    def __init__(self, config: DecoderConfig, rngs: nnx.Rngs) -> None:
        self.config = config
        dim, hidden, dtype = config.dim, config.mlp_hidden, jnp.dtype(config.dtype)
        # The two projections that add to the residual start smaller the deeper the model is (as in GPT-2).
        into_residual = nnx.initializers.variance_scaling(1 / (2 * config.layers), "fan_in", "truncated_normal")
        self.attention_norm = nnx.RMSNorm(dim, dtype=dtype, rngs=rngs)
        self.qkv = nnx.Linear(dim, 3 * dim, use_bias=False, dtype=dtype, rngs=rngs)
        self.out = nnx.Linear(dim, dim, use_bias=False, dtype=dtype, kernel_init=into_residual, rngs=rngs)
        self.mlp_norm = nnx.RMSNorm(dim, dtype=dtype, rngs=rngs)
        self.gate_up = nnx.Linear(dim, 2 * hidden, use_bias=False, dtype=dtype, rngs=rngs)
        self.down = nnx.Linear(hidden, dim, use_bias=False, dtype=dtype, kernel_init=into_residual, rngs=rngs)

    def project(self, x: jax.Array, angles: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Rotated queries, rotated keys, and values of ``x``, each [rows, length, heads, head_dim]."""
        heads = (*x.shape[:2], self.config.heads, self.config.head_dim)
        query, key, value = jnp.split(self.qkv(self.attention_norm(x)), 3, axis=-1)
        return rotate(query.reshape(heads), angles), rotate(key.reshape(heads), angles), value.reshape(heads)

    def combine(self, x: jax.Array, attended: jax.Array) -> jax.Array:
        """The block's output [rows, length, dim] from its input and the attended values of all heads."""
        x = x + self.out(attended.reshape(x.shape))
        gate, up = jnp.split(self.gate_up(self.mlp_norm(x)), 2, axis=-1)
        output: jax.Array = x + self.down(nnx.silu(gate) * up)
        return output


class Decoder(nnx.Module):
    """Decoder-only transformer over packed rows, with a cached path for sampling.

    Args:
      config: its sizes.
      seed: seed of the initial parameters; the same seed gives the same parameters.
    """

    def __init__(self, config: DecoderConfig, seed: int = 0) -> None:
        rngs = nnx.Rngs(seed)
        self.config = config
        table = nnx.initializers.normal(config.dim**-0.5)
        self.embedding = nnx.Param(table(rngs.params(), (config.vocab_size, config.dim), jnp.float32))
        self.blocks = nnx.List([Block(config, rngs) for _ in range(config.layers)])
        self.final_norm = nnx.RMSNorm(config.dim, dtype=jnp.dtype(config.dtype), rngs=rngs)
        self.head_kernel = nnx.Param(table(rngs.params(), (config.dim, config.vocab_size), jnp.float32))

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return self.config.vocab_size

    @property
    def max_length(self) -> int:
        """Longest sequence, prompt and completion together, in tokens."""
        return self.config.max_length

    def __call__(self, tokens: jax.Array, positions: jax.Array, segment_ids: jax.Array) -> jax.Array:
        """Logits of packed rows: ``head(hidden(...))``, float32 [rows, length, vocab]; shapes as in :meth:`hidden`."""
        return self.head(self.hidden(tokens, positions, segment_ids))

    def hidden(self, tokens: jax.Array, positions: jax.Array, segment_ids: jax.Array) -> jax.Array:
        """Final hidden states of packed rows. A token sees itself and earlier tokens of its own segment.

        Args:
          tokens: int32 [rows, length].
          positions: int32 [rows, length], 0 at the first token of each sequence.
          segment_ids: int32 [rows, length], 0 is padding, whose hidden states mean nothing but are finite.

        Returns:
          [rows, length, dim] in the dtype of the computation, after the final norm.
        """
        chex.assert_rank(tokens, 2)
        chex.assert_equal_shape([tokens, positions, segment_ids])
        angles, mask = self._angles(positions), packed_mask(segment_ids)
        x = self._embed(tokens)
        for block in self.blocks:
            query, key, value = block.project(x, angles)
            x = block.combine(x, attend(query, key, value, mask))
        normed: jax.Array = self.final_norm(x)
        return normed

    def head(self, hidden: jax.Array) -> jax.Array:
        """float32 logits [..., vocab] of hidden states [..., dim], accumulated in float32."""
        kernel = self.head_kernel[...].astype(hidden.dtype)
        return jnp.einsum("...d,dv->...v", hidden, kernel, preferred_element_type=jnp.float32)

    def prefill(self, tokens: jax.Array, lengths: jax.Array, capacity: int) -> tuple[jax.Array, KVCache]:
        """Run prompts through the model and start their caches.

        Args:
          tokens: int32 [rows, length], prompts from the left, padding on the right.
          lengths: int32 [rows], tokens of each prompt, at least 1.
          capacity: slots of the cache, at least ``length``; prompts take the first ``length`` of them.

        Returns:
          float32 logits [rows, vocab] after the last token of each prompt, and the cache.
        """
        rows, length = tokens.shape
        chex.assert_shape(lengths, (rows,))
        place = jnp.broadcast_to(jnp.arange(length), (rows, length))
        real = place < lengths[:, None]
        angles, mask = self._angles(place), packed_mask(real.astype(jnp.int32))
        spare = ((0, 0), (0, capacity - length), (0, 0), (0, 0))
        x, keys, values = self._embed(tokens), [], []
        for block in self.blocks:
            query, key, value = block.project(x, angles)
            keys.append(jnp.pad(key, spare))
            values.append(jnp.pad(value, spare))
            x = block.combine(x, attend(query, key, value, mask))
        last = jnp.take_along_axis(x, (lengths - 1)[:, None, None], axis=1)[:, 0]
        cache = KVCache(tuple(keys), tuple(values), jnp.pad(real, spare[:2]))
        return self.head(self.final_norm(last)), cache

    def decode(
        self, tokens: jax.Array, positions: jax.Array, cache: KVCache, slot: jax.Array
    ) -> tuple[jax.Array, KVCache]:
        """Add one token to every row.

        Args:
          tokens: int32 [rows].
          positions: int32 [rows], the place of the token in its own sequence.
          cache: of what came before.
          slot: int32 scalar, the free slot of the cache that the token takes in every row.

        Returns:
          float32 logits [rows, vocab] after the token, and the cache with it.
        """
        chex.assert_rank([tokens, positions], 1)
        angles, valid = self._angles(positions[:, None]), cache.valid.at[:, slot].set(True)
        x, keys, values = self._embed(tokens[:, None]), [], []
        for index, block in enumerate(self.blocks):
            query, key, value = block.project(x, angles)
            keys.append(jax.lax.dynamic_update_slice_in_dim(cache.keys[index], key, slot, axis=1))
            values.append(jax.lax.dynamic_update_slice_in_dim(cache.values[index], value, slot, axis=1))
            x = block.combine(x, attend(query, keys[-1], values[-1], valid[:, None, :]))
        return self.head(self.final_norm(x))[:, 0], KVCache(tuple(keys), tuple(values), valid)

    def _embed(self, tokens: jax.Array) -> jax.Array:
        embedded: jax.Array = self.embedding[...].astype(self.config.dtype)[tokens]
        return embedded

    def _angles(self, positions: jax.Array) -> jax.Array:
        return rotary_angles(positions, self.config.head_dim, self.config.rope_theta)
