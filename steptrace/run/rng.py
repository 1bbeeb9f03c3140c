"""Random keys as functions of (seed, op, step, micro-batch), so that moving work cannot change draws."""

from __future__ import annotations

import zlib

import jax
import numpy as np

_WORD = 0xFFFFFFFF


def key_for(seed: int, op: str, step: int, micro: int = 0) -> jax.Array:
    """The key that one op uses in one step. There is no stream to advance: only the arguments decide.

    Args:
      seed: seed of the run, any integer; its low 64 bits count.
      op: name of the op, hashed with CRC-32, which is the same in every process.
      step: the step, in 0 .. 2**32-1.
      micro: index of the micro-batch, in 0 .. 2**32-1.

    Returns:
      A typed Threefry key of shape [].
    """
    assert 0 <= step <= _WORD, f"a step is a 32-bit count, not {step}"
    assert 0 <= micro <= _WORD, f"a micro-batch index is a 32-bit count, not {micro}"
    words = (seed & _WORD, (seed >> 32) & _WORD, zlib.crc32(op.encode()), step, micro)
    key: jax.Array = _chain(np.asarray(words, np.uint32))
    return key


@jax.jit
def _chain(words: jax.Array) -> jax.Array:
    """Fold ``words`` [n] into a key, one after another."""
    key = jax.random.key(0, impl="threefry2x32")
    for index in range(words.shape[0]):
        key = jax.random.fold_in(key, words[index])
    return key
