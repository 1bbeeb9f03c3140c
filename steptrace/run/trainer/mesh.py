"""The trainer on a mesh: which array is sharded over which axes, and how arrays come there and back.

The leaves are the ones of a single device, compiled for all devices by the partitioner (GSPMD, Xu et al. 2021): what is
said here are the shardings of what goes in and comes out. Parameters are sharded over ``fsdp``, and so are moments and
the accumulator (Rajbhandari et al. 2020, "ZeRO"); rows of micro-batches over ``data`` and ``fsdp``, positions over
``context``, the experts of a mixture over ``expert``.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from steptrace.diag.training import MeshError
from steptrace.run.trainer.batch import owned

ROW_AXES = ("data", "fsdp")
"""Axes over which rows of micro-batches are sharded; those of them that the mesh has."""

POSITION_AXES = ("context",)
"""Axes over which positions are."""

Rules = Sequence[tuple[str, PartitionSpec]]
"""Pairs of a regular expression, searched for in the path of a parameter in words (``blocks.0.qkv.kernel``), and the
axes of its dimensions. The first pair that fits holds."""


class Placement:
    """Where arrays are: here wherever JAX places them, which is one device.

    Attributes:
      params: shardings like the parameters, as leaves give them; None where JAX places them.
      whole: the sharding of an array that each device has whole, or None.
    """

    params: Any = None
    whole: Any = None

    def state(self, init: Callable[[Any], Any], params: Any) -> Any:
        """Shardings of the optimizer's state that ``init(params)`` makes, or None."""
        return None

    def put(self, tree: Any, shardings: Any) -> Any:
        """A tree of device arrays, brought to where it belongs."""
        return tree

    def batch(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """A micro-batch's arrays as a leaf may keep them; host arrays are copied."""
        return owned(arrays)

    def gathered(self, copied: Any) -> Any:
        """A copy of the parameters as arrays that are whole on one device, as rollouts take them."""
        return copied

    def entered(self, jitted: Any) -> Any:
        """The leaf, called where it finds the mesh."""
        return jitted


class MeshPlacement(Placement):
    """Where the trainer's arrays are on a mesh.

    Explicit axes of the mesh are taken as automatic ones: the partitioner sees to what models and losses do not say.

    Attributes:
      mesh: the mesh.
    """

    def __init__(self, mesh: Mesh, rules: Rules, params: Any) -> None:
        """Find the sharding of each parameter.

        A parameter that no rule speaks of is sharded over ``fsdp`` in the longest dimension that divides by it, and
        the parameters of experts over ``expert`` in their first one.

        Raises:
          MeshError: a rule is no regular expression, names an axis that is not there, or does not divide a parameter.
        """
        self.mesh = Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))
        self.whole = NamedSharding(self.mesh, PartitionSpec())
        sizes, checked = dict(self.mesh.shape), _checked(rules)

        def of(path: Any, leaf: Any) -> NamedSharding:
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            return NamedSharding(self.mesh, _spec(name, leaf.shape, checked, sizes))

        self.params = jax.tree_util.tree_map_with_path(of, params)

    def state(self, init: Callable[[Any], Any], params: Any) -> Any:
        """Shardings of the optimizer's state: what is like a parameter lies as it does, all else is whole.

        Like a parameter is a leaf whose path ends in that of the parameter, and which has its shape.
        """
        leaves = jax.tree_util.tree_leaves_with_path(params)
        known = {
            (_words(path), leaf.shape): sharding
            for (path, leaf), sharding in zip(leaves, jax.tree.leaves(self.params), strict=True)
        }

        def of(path: Any, leaf: Any) -> NamedSharding:
            words = _words(path)
            ends = ((words[start:], leaf.shape) for start in range(len(words)))
            return next((known[end] for end in ends if end in known), self.whole)

        return jax.tree_util.tree_map_with_path(of, jax.eval_shape(init, params))

    def put(self, tree: Any, shardings: Any) -> Any:
        """A tree of device arrays, brought to the mesh; ``shardings`` is one, or a tree like it."""
        return jax.device_put(tree, shardings)

    def batch(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """A micro-batch's arrays on the mesh; host arrays are copied, and the copies shipped.

        Arrays [rows, length, ...] are sharded over rows and positions, arrays [rows, ...] over rows, each by as many
        axes as divide them; what is neither is whole on each device.
        """
        sizes = self.mesh.shape
        whole: tuple[int, ...] = np.shape(arrays["tokens"]) if "tokens" in arrays else ()

        def of(array: Any) -> NamedSharding:
            shape = np.shape(array)
            if len(whole) != 2 or shape[:1] != whole[:1] or jnp.issubdtype(array.dtype, jax.dtypes.extended):
                return self.whole
            spec = [dividing(ROW_AXES, shape[0], sizes) or None]
            if shape[:2] == whole:
                spec.append(dividing(POSITION_AXES, shape[1], sizes) or None)
            return NamedSharding(self.mesh, PartitionSpec(*spec))

        own = owned(arrays)
        return jax.device_put(own, {name: of(array) for name, array in own.items()})

    def gathered(self, copied: Any) -> Any:
        """The parameters whole, on the default device and bound to none; waits for them."""
        gathered = jax.device_put(copied, self.whole)
        return jax.tree.map(lambda leaf: jnp.array(np.asarray(leaf.addressable_data(0))), gathered)

    def entered(self, jitted: Any) -> Any:
        """The leaf, called under the mesh, so that a model or a loss may constrain by axes alone."""
        return _UnderMesh(self.mesh, jitted)


_DISPATCH = threading.Lock()
"""Programs of several devices are sent by one thread at a time: two that send to each other in different orders on
different devices would wait for one another for good. Trainer and reference may be called on different lanes."""


class _UnderMesh:
    """A jitted function that is traced and run under a mesh."""

    def __init__(self, mesh: Mesh, jitted: Any) -> None:
        self._mesh, self._jitted = mesh, jitted

    def __call__(self, *args: Any) -> Any:
        with _DISPATCH, jax.set_mesh(self._mesh):
            return self._jitted(*args)

    def lower(self, *args: Any) -> Any:
        with jax.set_mesh(self._mesh):
            return self._jitted.lower(*args)


def placement(mesh: Mesh | None, rules: Rules, params: Any) -> Placement:
    """Where the arrays of a trainer are; raises `MeshError`."""
    if mesh is None:
        if rules:
            raise MeshError("sharding rules were given without a mesh", help="give JaxTrainer(mesh=...) too")
        return Placement()
    return MeshPlacement(mesh, rules, params)


def _checked(rules: Rules) -> list[tuple[re.Pattern[str], PartitionSpec]]:
    try:
        return [(re.compile(pattern), spec) for pattern, spec in rules]
    except (re.error, TypeError, ValueError) as error:
        raise MeshError(f"a sharding rule is a regular expression and a PartitionSpec: {error}") from None


def _spec(
    name: str, shape: tuple[int, ...], rules: list[tuple[re.Pattern[str], PartitionSpec]], sizes: Mapping[str, int]
) -> PartitionSpec:
    """The axes of a parameter's dimensions."""
    for pattern, spec in rules:
        if pattern.search(name):
            _check_fits(name, shape, spec, sizes)
            return spec
    return default_spec(name, shape, sizes)


def default_spec(name: str, shape: tuple[int, ...], sizes: Mapping[str, int]) -> PartitionSpec:
    """The axes of a parameter that no rule speaks of, see `MeshPlacement`; an entry for each dimension.

    Args:
      name: its path in words.
      shape: its shape.
      sizes: devices along each axis of the mesh.
    """
    axes: list[str | None] = [None] * len(shape)
    of_experts = "expert" in sizes and "experts" in name.split(".") and len(shape) > 2
    if of_experts and shape[0] % sizes["expert"] == 0:
        axes[0] = "expert"
    free = [place for place, axis in enumerate(axes) if axis is None and shape[place] % sizes.get("fsdp", 1) == 0]
    if "fsdp" in sizes and free:
        axes[max(free, key=lambda place: shape[place])] = "fsdp"
    return PartitionSpec(*axes)


def dividing(axes: tuple[str, ...], size: int, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Those of the axes that the mesh has and that together divide a dimension, the first ones first."""
    taken: tuple[str, ...] = ()
    for axis in axes:
        if axis in sizes and size % prod(sizes[one] for one in (*taken, axis)) == 0:
            taken = (*taken, axis)
    return taken


def _check_fits(name: str, shape: tuple[int, ...], spec: PartitionSpec, sizes: Mapping[str, int]) -> None:
    """Refuse a rule that a parameter cannot be sharded by."""
    if len(spec) > len(shape):
        raise MeshError(f"the sharding rule of `{name}` has {len(spec)} dimensions, and the parameter {len(shape)}")
    for size, entry in zip(shape, spec, strict=False):
        axes = () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)
        for axis in axes:
            if axis not in sizes:
                raise MeshError(
                    f"the sharding rule of `{name}` names an axis `{axis}`; the mesh has {', '.join(sizes)}"
                )
        if size % prod(sizes[axis] for axis in axes):
            raise MeshError(f"`{name}` has a dimension of {size}, which does not divide over {', '.join(axes)}")


def _words(path: Any) -> tuple[str, ...]:
    """A path in words, the same for the keys of optax's and of a model's trees."""
    return tuple(jax.tree_util.keystr((key,), simple=True) for key in path)
