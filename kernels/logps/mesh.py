"""Which mesh a call runs on, whichever of JAX's three ways of naming one the caller uses."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from steptrace_kernels.logps.head import Axes, Head, Layout


def current_mesh() -> Mesh | AbstractMesh | None:
    """The mesh of ``jax.set_mesh``, else that of a legacy ``with mesh:``, else None.

    Under ``with mesh:`` the abstract mesh is empty, so that who asks for it alone finds none.
    """
    abstract = jax.sharding.get_abstract_mesh()
    if not abstract.empty:
        return abstract
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from jax.interpreters import pxla

        resources = getattr(pxla, "thread_resources", None)
    physical = resources.env.physical_mesh if resources is not None else None
    return None if physical is None or physical.empty else physical


def sizes(mesh: Mesh | AbstractMesh) -> dict[str, int]:
    """Devices along each axis of the mesh, in its order."""
    return dict(mesh.shape)


def count(axis_sizes: dict[str, int], axes: Iterable[str]) -> int:
    """Devices along all of ``axes`` together."""
    return math.prod(axis_sizes[axis] for axis in axes)


def manual_axes(mesh: Mesh | AbstractMesh) -> Axes:
    """Axes that an enclosing ``shard_map`` already took; over these no other one can run."""
    kinds = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return tuple(name for name, kind in kinds if kind == AxisType.Manual)


def layout_from_types(hidden: jax.Array, head: Head) -> Layout | None:
    """The layout that the arrays' own types tell, or None where they tell none: only explicit sharding does.

    Inside ``jit`` the type of an array on an automatic mesh says nothing, however it is sharded.
    """
    rows, table = _explicit_spec(hidden), _explicit_spec(head.weight)
    if rows is None or table is None:
        return None
    vocab, embed = table if head.orientation == "vd" else table[::-1]
    return Layout(batch=rows[0], sequence=rows[1], table_vocab=vocab, table_embed=embed)


def reshard(array: jax.Array, mesh: Mesh | AbstractMesh, spec: PartitionSpec) -> jax.Array:
    """``array`` with the sharding ``spec`` over axes of the mesh that are explicit; to others the compiler sees."""
    kinds = zip(mesh.axis_names, mesh.axis_types, strict=True)
    explicit = {name for name, kind in kinds if kind == AxisType.Explicit}
    if not explicit:
        return array
    kept = (tuple(axis for axis in axes if axis in explicit) or None for axes in _by_dimension(spec))
    return jax.sharding.reshard(array, NamedSharding(mesh, PartitionSpec(*kept)))


def _explicit_spec(array: Any) -> list[Axes] | None:
    """Axes of each dimension as the type of ``array`` has them, or None on a mesh without explicit axes."""
    sharding = getattr(jax.typeof(array), "sharding", None)
    if sharding is None or not any(kind == AxisType.Explicit for kind in sharding.mesh.axis_types):
        return None
    return [*_by_dimension(sharding.spec), *[()] * (array.ndim - len(sharding.spec))]


def _by_dimension(spec: PartitionSpec) -> list[Axes]:
    return [() if e is None else (e,) if isinstance(e, str) else tuple(e) for e in spec]
