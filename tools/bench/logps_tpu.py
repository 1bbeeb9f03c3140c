"""The arms of `steptrace bench logps` compiled ahead of time for TPUs that need not be there."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from steptrace.diag.command import MissingCompilerError

from .logps_cells import SMALL, Cell, compiled, figures, mesh_of

_ARMS = ("gspmd-fixed", "seed", "auto", SMALL, "one-pass")


def ahead_of_time(cell: Cell, topology: str) -> dict[str, dict[str, Any]]:
    """Figures of each arm's compiled program, by its name; nothing is run.

    Raises:
      MissingCompilerError: there is no compiler for TPUs, or it knows no such topology.
    """
    if find_spec("libtpu") is None:
        raise MissingCompilerError(
            "programs for TPUs need their compiler, which is not installed", help="pip install libtpu"
        )
    cell, devices = _devices(cell, topology)
    mesh = mesh_of(cell, devices)
    return {name: figures(cell, compiled(cell, name, mesh)) for name in _ARMS}


def _devices(cell: Cell, topology: str) -> tuple[Cell, Any]:
    """The devices of a topology, and the cell on as many: with more or fewer along the first axis."""
    from jax.experimental import topologies

    try:
        devices = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices
    except Exception as error:
        raise MissingCompilerError(f"the compiler for TPUs knows no topology `{topology}`: {error}") from error
    fixed = cell.sizes[1] * cell.sizes[2]
    if len(devices) % fixed or cell.rows % (len(devices) // fixed * cell.sizes[2]):
        raise MissingCompilerError(f"`{topology}` has {len(devices)} devices, on which {cell.rows} rows do not divide")
    return replace(cell, sizes=(len(devices) // fixed, *cell.sizes[1:])), devices
