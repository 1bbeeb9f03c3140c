"""Digests by which two runs are compared: of parameters, of the trainer's calls, of the trained groups."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

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


def array_bytes(array: Any) -> bytes:
    """Shape, dtype and content of an array; waits for it when it is still being computed."""
    host = np.asarray(array)
    return f"{host.dtype}{host.shape}".encode() + np.ascontiguousarray(host).tobytes()


def tree_digest(tree: Any) -> str:
    """SHA-256 over the leaves of a tree in the order of their sorted paths, with paths, shapes and dtypes."""
    leaves = [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]]
    digest = EMPTY
    for path, leaf in sorted(leaves, key=lambda item: item[0]):
        digest = chain(digest, path, array_bytes(leaf))
    return digest


class CallLog:
    """The trainer's calls with hashed inputs, in order.

    Inputs are hashed when ``settle`` is called, at a place where the step waits for the device anyway, so that
    hashing adds no host wait to a call. At most one step's inputs are held.
    """

    def __init__(self, digest: str = EMPTY) -> None:
        self._digest = digest
        self._pending: list[tuple[str, Mapping[str, Any]]] = []

    def record(self, verb: str, micro_batch: MicroBatch | None = None) -> None:
        """Note a call; its inputs are hashed later."""
        arrays: Mapping[str, Any] = {} if micro_batch is None else micro_batch.arrays
        self._pending.append((verb, arrays))

    def settle(self) -> str:
        """Hash what is pending and give the digest of all calls so far."""
        for verb, arrays in self._pending:
            parts = [part for name in sorted(arrays) for part in (name.encode(), array_bytes(arrays[name]))]
            self._digest = chain(self._digest, verb, *parts)
        self._pending.clear()
        return self._digest
