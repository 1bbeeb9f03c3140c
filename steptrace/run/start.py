"""Parameters to start from: a checkpoint that Orbax wrote, restored for a model."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from steptrace.diag.base import Note
from steptrace.diag.checkpoint import BrokenCheckpointError, OtherModelError

_SHOWN = 5


def restore(path: str | Path, like: Any) -> Any:
    """The arrays in a checkpoint that ``orbax.checkpoint.StandardCheckpointer`` wrote, for a model to start from.

    Args:
      path: the folder of the checkpoint.
      like: a tree of arrays with the structure, shapes and dtypes of the model, as ``flax.nnx.split`` gives them.

    Returns:
      A tree like that, with the values of the checkpoint.

    Raises:
      OtherModelError: it was written for a model with other parameters; says which.
      BrokenCheckpointError: there is no checkpoint, or it cannot be read.
    """
    place = Path(path).absolute()
    there, here = _stored(place), arrays_of(like)
    if there != here:
        raise OtherModelError(
            f"{path} holds the parameters of another model",
            notes=other_arrays(there, here),
            help=f"remove {path}, and start from a checkpoint of this model",
        )
    try:
        with ocp.StandardCheckpointer() as checkpointer:
            return checkpointer.restore(place, like)
    except Exception as error:
        raise _broken(place, f"{type(error).__name__}: {error}".partition("\n")[0]) from error


def _stored(place: Path) -> dict[str, str]:
    """Shape and dtype of what a checkpoint holds, by path."""
    if not place.is_dir():
        raise _broken(place, "there is no such folder")
    level = logging.getLogger("absl").level
    logging.getLogger("absl").setLevel(logging.ERROR)  # what it would warn of is the error below
    try:
        with ocp.StandardCheckpointer() as checkpointer:
            tree = getattr(checkpointer.metadata(place).item_metadata, "tree", None)
    except Exception as error:
        raise _broken(place, f"{type(error).__name__}: {error}".partition("\n")[0]) from error
    finally:
        logging.getLogger("absl").setLevel(level)
    if not tree:
        raise _broken(place, "it is no checkpoint of a tree of arrays")
    return arrays_of(tree)


def other_arrays(there: Mapping[str, str], here: Mapping[str, str]) -> tuple[Note, ...]:
    """The arrays that a checkpoint and a model do not share, the first few; none where nothing is known of one."""
    different = [
        f"{name}: {there.get(name, 'nothing')} there, {here.get(name, 'nothing')} in the model"
        for name in sorted({*there, *here})
        if there and there.get(name) != here.get(name)
    ]
    more = [f"and {len(different) - _SHOWN} more"] if len(different) > _SHOWN else []
    return tuple(map(Note, (*different[:_SHOWN], *more)))


def arrays_of(tree: Any) -> dict[str, str]:
    """Shape and dtype of each leaf of a tree, by path."""
    return {
        ".".join(_names(path)): f"{leaf.dtype}{list(leaf.shape)}" if hasattr(leaf, "dtype") else type(leaf).__name__
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
    }


def _names(path: Sequence[Any]) -> list[str]:
    """The path of a leaf; that a flax variable holds it in its `value` is left out."""
    names = [str(getattr(part, "key", getattr(part, "name", getattr(part, "idx", part)))) for part in path]
    return names[:-1] if names[1:] and names[-1] == "value" else names


def _broken(place: Path, why: str) -> BrokenCheckpointError:
    return BrokenCheckpointError(f"{place} cannot be restored: {why}", help="name a folder that Orbax has written")
