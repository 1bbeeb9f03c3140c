"""The trainer's state on disk: an Orbax checkpoint, and beside it what it must be when it is read back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from steptrace.diag.base import Note
from steptrace.diag.training import DamagedStateError, OtherModelError, StateNotWrittenError
from steptrace.run.digest import tree_digest

FORMAT = 1
_ARRAYS = "arrays"
_SUMMARY = "trainer.json"


def named_leaves(tree: Any) -> dict[str, Any]:
    """The leaves of a tree by their path in words, ``layers.0.kernel``."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    named = {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}
    assert len(named) == len(leaves), "two leaves of a tree have the same path in words"
    return named


def fingerprint(tree: Any) -> str:
    """SHA-256 over paths, shapes and dtypes of a tree: what the arrays are, not what they hold."""
    return hashlib.sha256("\n".join(_forms(tree)).encode()).hexdigest()


def sizes(params: Any) -> dict[str, Any]:
    """How many numbers the parameters are (``parameters``), their ``parameter_bytes``, and their ``fingerprint``."""
    leaves = jax.tree.leaves(params)
    return {
        "parameters": sum(leaf.size for leaf in leaves),
        "parameter_bytes": sum(leaf.nbytes for leaf in leaves),
        "fingerprint": fingerprint(params),
    }


def save_state(directory: Path, state: Mapping[str, Any]) -> None:
    """Write trees of arrays below ``directory``; complete and on disk when it returns.

    The arrays come first and the summary last, so that a summary stands for a whole checkpoint.

    Raises:
      StateNotWrittenError: the folder cannot be written, or holds a trainer's state already.
    """
    arrays = _plain(named_leaves(dict(state)))
    summary = {"format": FORMAT, "forms": _forms(dict(state)), "digest": tree_digest(arrays)}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save((directory / _ARRAYS).resolve(), arrays)
            checkpointer.wait_until_finished()
        (directory / _SUMMARY).write_text(json.dumps(summary, indent=1))
    except (OSError, ValueError) as error:
        raise StateNotWrittenError(f"the trainer's state cannot be written to {directory}: {error}") from error


def load_state(directory: Path, like: Mapping[str, Any]) -> dict[str, Any]:
    """Read back trees of arrays of the same forms as ``like``, with its shardings.

    Raises:
      DamagedStateError: files are missing, cut short or altered.
      OtherModelError: what was saved has other names, shapes or dtypes.
    """
    summary = _summary(directory)
    _check_forms(summary["forms"], _forms(dict(like)), directory)
    leaves = named_leaves(dict(like))
    target = {
        name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
        for name, leaf in _plain(leaves).items()
    }
    try:
        with ocp.StandardCheckpointer() as checkpointer:
            arrays = checkpointer.restore((directory / _ARRAYS).resolve(), target)
    except Exception as error:  # whatever Orbax and TensorStore raise over files that are not whole
        reason = str(error).splitlines() or [type(error).__name__]
        raise DamagedStateError(f"the trainer's state in {directory} cannot be read: {reason[0]}") from error
    if tree_digest(arrays) != summary["digest"]:
        raise DamagedStateError(f"the trainer's state in {directory} is not what was written there")
    restored = [_as(leaf, arrays[name]) for name, leaf in leaves.items()]
    tree: dict[str, Any] = jax.tree.unflatten(jax.tree.structure(dict(like)), restored)
    return tree


def _summary(directory: Path) -> dict[str, Any]:
    """The summary, read and checked for what is used of it."""
    path = directory / _SUMMARY
    try:
        summary = json.loads(path.read_text())
    except FileNotFoundError:
        raise DamagedStateError(f"there is no whole trainer state in {directory}: {_SUMMARY} is missing") from None
    except (OSError, ValueError) as error:
        raise DamagedStateError(f"{path} cannot be read: {error}") from error
    if not (isinstance(summary, dict) and isinstance(summary.get("forms"), list) and "digest" in summary):
        raise DamagedStateError(f"{path} is not the summary of a trainer's state")
    if summary.get("format") != FORMAT:
        raise DamagedStateError(f"{path} has format {summary.get('format')!r}; this version reads {FORMAT}")
    return summary


def _check_forms(saved: list[str], own: list[str], directory: Path) -> None:
    """Refuse a state of other names, shapes or dtypes, and show where it differs."""
    if saved == own:
        return
    notes = [f"saved:   {form}" for form in saved if form not in set(own)][:3]
    notes += [f"trainer: {form}" for form in own if form not in set(saved)][:3]
    raise OtherModelError(
        f"the trainer's state in {directory} belongs to another model or optimizer",
        notes=tuple(Note(text) for text in notes),
    )


def _forms(tree: Any) -> list[str]:
    """Path, shape and dtype of each leaf, sorted."""
    return sorted(f"{name} {list(leaf.shape)} {leaf.dtype}" for name, leaf in named_leaves(tree).items())


def _is_key(array: Any) -> bool:
    return jnp.issubdtype(array.dtype, jax.dtypes.prng_key)


def _plain(leaves: dict[str, Any]) -> dict[str, Any]:
    """PRNG keys as the integers they consist of, since those can be stored."""
    return {name: jax.random.key_data(leaf) if _is_key(leaf) else leaf for name, leaf in leaves.items()}


def _as(like: Any, array: jax.Array) -> jax.Array:
    """The stored array as what it was; where ``like`` is not bound to a device, neither is it.

    Orbax binds what it reads, and a leaf would compile again for an argument that is bound.
    """
    free = array if like.committed else jnp.array(np.asarray(array))
    return jax.random.wrap_key_data(free, impl=jax.random.key_impl(like)) if _is_key(like) else free
