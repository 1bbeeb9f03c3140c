"""The mesh that a job names: ``data=2,fsdp=2,context=2``."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import jax
from jax.sharding import AxisType, Mesh

from steptrace.diag.job import JobOptionError, TooFewDevicesError

AXES = ("data", "fsdp", "context", "expert")
"""The axes that a job knows; what each shards says `trainer.mesh`."""

MOST = 1_000_000
"""More devices than any mesh has; a number above it is a slip."""


def mesh_sizes(text: str) -> dict[str, int]:
    """The devices along each axis, in the order of the text; nothing for "".

    Raises:
      JobOptionError: an axis is unknown or named twice, or its size is no positive number; or all are too many.
    """
    sizes: dict[str, int] = {}
    for part in text.split(",") if text else ():
        axis, _, size = (word.strip() for word in part.partition("="))
        if axis not in AXES or axis in sizes or not (size.isdecimal() and int(size)):
            raise JobOptionError(
                f"mesh={text!r}: {part!r} is no axis with its number of devices",
                help=f"each of {', '.join(AXES)} at most once, as in data=2,fsdp=4",
            )
        sizes[axis] = int(size)
    if prod(sizes.values()) > MOST:
        raise JobOptionError(f"mesh={text!r}: no machine has so many devices", help=f"{MOST:,} at most, over all axes")
    return sizes


def mesh_of(sizes: Mapping[str, int]) -> Mesh | None:
    """The mesh, on the first devices of the process; None where no axis is named.

    Raises:
      TooFewDevicesError: the process has fewer devices than the mesh.
    """
    if not sizes:
        return None
    wanted, there = prod(sizes.values()), jax.devices()
    if wanted > len(there):
        kind = there[0].platform
        raise TooFewDevicesError(
            f"a mesh of {' x '.join(f'{axis}={size}' for axis, size in sizes.items())} takes {wanted} devices, "
            f"and there {'is' if len(there) == 1 else 'are'} {len(there)} ({kind})",
            help=f"to try it on a CPU: XLA_FLAGS=--xla_force_host_platform_device_count={wanted}",
        )
    kinds = (AxisType.Auto,) * len(sizes)
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=kinds, devices=there[:wanted])
