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
    structure is that of the tree that it is restored like.
    """
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(directory.absolute(), _numbered(tree))
        checkpointer.wait_until_finished()


def restore_tree(directory: Path, like: Any) -> Any:
    """The tree that was written to ``directory``, with the structure, shapes, dtypes and shardings of ``like``."""
    abstract = {name: ocp.utils.to_shape_dtype_struct(leaf) for name, leaf in _numbered(like).items()}
    with ocp.StandardCheckpointer() as checkpointer:
        leaves = checkpointer.restore(directory.absolute(), abstract)
    restored = [leaves[name] for name in abstract]
    own = [
        leaf if isinstance(old, jax.Array | np.ndarray) else type(old)(leaf.item())
        for leaf, old in zip(restored, jax.tree.leaves(like), strict=True)
    ]
    return jax.tree.unflatten(jax.tree.structure(like), own)


def _numbered(tree: Any) -> dict[str, Any]:
    """The leaves of a tree by their number, each an array."""
    leaves = jax.tree.leaves(tree)
    return {
        f"{index:06d}": leaf if isinstance(leaf, jax.Array) else np.asarray(leaf) for index, leaf in enumerate(leaves)
    }
