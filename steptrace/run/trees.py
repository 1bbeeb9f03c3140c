"""Trees of arrays on disk, by Orbax."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp


def save_tree(directory: Path, tree: Any) -> None:
    """Write a tree of arrays to ``directory``, which must not exist; complete on disk on return."""
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(directory.absolute(), jax.tree.map(lambda leaf: leaf, tree))
        checkpointer.wait_until_finished()


def restore_tree(directory: Path, like: Any) -> Any:
    """The tree that was written to ``directory``, with the structure, shapes, dtypes and shardings of ``like``."""
    abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(directory.absolute(), abstract)
