"""Digests by which two runs are compared: of parameters, of the trainer's calls, of the trained groups."""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from typing import Any

import jax
import numpy as np

from steptrace.diag.binding import PartResultError
from steptrace.lang.records import MicroBatch

EMPTY = hashlib.sha256(b"").hexdigest()
"""The digest of a chain with nothing in it."""


def chain(digest: str, *parts: bytes | str) -> str:
    """The digest of a chain with one more entry; depends on all entries and their order."""
    sha = hashlib.sha256(digest.encode())
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        sha.update(len(data).to_bytes(8, "little"))
        sha.update(data)
    return sha.hexdigest()


def array_hash(array: Any) -> bytes:
    """SHA-256 over dtype, shape and content of an array; waits for it when it is still being computed.

    A typed PRNG key counts by its generator and data.
    """
    if isinstance(array, jax.Array) and jax.numpy.issubdtype(array.dtype, jax.dtypes.prng_key):
        return hashlib.sha256(str(array.dtype).encode() + array_hash(jax.random.key_data(array))).digest()
    host = np.asarray(array)
    sha = hashlib.sha256(f"{host.dtype}{host.shape}".encode())
    sha.update(np.ascontiguousarray(host).reshape(-1).view(np.uint8).data)
    return sha.digest()


def tree_digest(tree: Any) -> str:
    """SHA-256 over the leaves of a tree in the order of their sorted paths, with paths, shapes and dtypes."""
    leaves = [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]]
    digest = EMPTY
    for path, leaf in sorted(leaves, key=lambda item: item[0]):
        digest = chain(digest, path, array_hash(leaf))
    return digest


class CallLog:
    """The trainer's calls with hashed inputs, in order.

    Arrays on the host are hashed at once, since their owner may use them again. Arrays on a device may still be
    computed: they are hashed when ``settle`` is called, at a place where the step waits for the device anyway, so
    that hashing adds no wait to a call.
    """

    def __init__(self, digest: str = EMPTY) -> None:
        self._digest = digest
        self._pending: deque[tuple[str, list[str | bytes | jax.Array]]] = deque()
        self._settling = threading.Lock()

    def record(self, verb: str, micro_batch: MicroBatch | None = None) -> None:
        """Note a call: its verb; the micro-batch's arrays by name, its place in the step, and its keys."""
        inputs: list[str | bytes | jax.Array] = []
        if micro_batch is not None:
            inputs.append(f"{micro_batch.step} {micro_batch.index} {micro_batch.last} {micro_batch.keys}")
            for name, array in sorted(micro_batch.arrays.items()):
                inputs += [name, array if isinstance(array, jax.Array) else array_hash(array)]
        self._pending.append((verb, inputs))

    @property
    def pending(self) -> int:
        """How many calls are noted and not hashed yet."""
        return len(self._pending)

    def settle(self) -> str:
        """Hash what is pending and give the digest of all calls so far.

        Raises:
          PartResultError: a trainer gave the buffer of an array away that it was handed.
        """
        with self._settling:
            while self._pending:  # one by one from the front: a call that another lane notes meanwhile comes behind
                self._hash(*self._pending.popleft())
            return self._digest

    def _hash(self, verb: str, inputs: list[str | bytes | jax.Array]) -> None:
        if any(isinstance(part, jax.Array) and part.is_deleted() for part in inputs):
            raise PartResultError(
                f"the trainer has donated an array of the micro-batch that `{verb}` was called with",
                help="donate the trainer's own buffers only: an array of a micro-batch may have other readers",
            )
        hashed = [array_hash(part) if isinstance(part, jax.Array) else part for part in inputs]
        self._digest = chain(self._digest, verb, *hashed)
