"""Trees of arrays on disk, by Orbax."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp


def save_tree(directory: Path, tree: Any) -> None:
    """Write the leaves of a tree of arrays and numbers to ``directory``, which must not exist.

    Complete and on disk on return. The leaves are numbered: a tree of any kind of nodes can be written, and its
    structure is that of the tree that it is restored like. Of an array without elements nothing is written.
    """
    leaves = _numbered(tree)
    if not leaves:
        directory.mkdir(parents=True)
        return
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(directory.absolute(), leaves)
        checkpointer.wait_until_finished()


def restore_tree(directory: Path, like: Any) -> Any:
    """The tree that was written to ``directory``, with the structure, shapes, dtypes and shardings of ``like``."""
    abstract = {name: ocp.utils.to_shape_dtype_struct(leaf) for name, leaf in _numbered(like).items()}
    leaves: dict[str, Any] = {}
    if abstract:
        with ocp.StandardCheckpointer() as checkpointer:
            leaves = checkpointer.restore(directory.absolute(), abstract)
    own = [_like(old, leaves.get(_name(index))) for index, old in enumerate(jax.tree.leaves(like))]
    return jax.tree.unflatten(jax.tree.structure(like), own)


def _like(old: Any, leaf: Any) -> Any:
    """A leaf that was restored, as the old one is: an array or a number; the old one where it has no elements."""
    if leaf is None or isinstance(old, jax.Array | np.ndarray):
        return old if leaf is None else leaf
    return type(old)(leaf.item())


def _numbered(tree: Any) -> dict[str, Any]:
    """The leaves of a tree by their number, each an array, but for those without elements: Orbax refuses them."""
    leaves = [leaf if isinstance(leaf, jax.Array) else np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    return {_name(index): leaf for index, leaf in enumerate(leaves) if leaf.size}


def _name(index: int) -> str:
    return f"{index:06d}"
