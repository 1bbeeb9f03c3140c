"""`steptrace bench logps`: the sharded log-prob head beside what the compiler makes of a chunked one."""

from __future__ import annotations

import json
import os
import sys
import time
from statistics import median
from typing import Any

from absl import flags

from ..command import Command, UsageError
from ..table import aligned
from .load import ForeignLoad, shown
from .logps_cells import ARMS, CELLS, FULL_CELL, Cell, arguments, compiled, error, figures, mesh_of, reference

_LEAST = 3
"""Rounds whose median means something; no limit of time takes them away."""

_TABLE = ("allgathers", "allreduces", "reduce_scatters", "exchanges")
_DEVICES = "--xla_force_host_platform_device_count=8"


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_enum("layout", "L1k", list(CELLS), "sizes, and what is sharded over which axes", flag_values=values)
    flags.DEFINE_integer("rounds", 7, "how often each arm is timed, at most", 1, flag_values=values)
    flags.DEFINE_float("limit-s", 120.0, "no round is begun after so long, but for three", 0.0, flag_values=values)
    flags.DEFINE_string(
        "tpu-topology",
        "",
        "compile a large run's micro-batch ahead of time for these TPUs, as tpu7x:4x4x8, instead; needs libtpu",
        flag_values=values,
    )
    flags.DEFINE_bool("json", False, "print one JSON object instead of the table", flag_values=values)


def _run(operands: list[str], values: flags.FlagValues) -> int:
    topology = values["tpu-topology"].value
    load = ForeignLoad()
    if topology:
        from .logps_tpu import ahead_of_time

        found = {"layout": topology, "arms": ahead_of_time(FULL_CELL, topology)}
    else:
        print("a minute or two, most of it compiling; the table comes at the end", file=sys.stderr)
        eight_devices()
        arms = measured(CELLS[values.layout], values.rounds, values["limit-s"].value)
        found = {"layout": values.layout, "arms": arms}
    found["foreign_cpu"] = load.share()
    if values.json:
        print(json.dumps(found))
        return 0
    print(report(found))
    print(f"\nother processes took {shown(load.share())} of the machine meanwhile")
    return 0


def eight_devices() -> None:
    """Let JAX start with eight devices on the processor.

    Raises:
      UsageError: it has started already, with fewer.
    """
    os.environ["JAX_PLATFORMS"] = "cpu"
    if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_DEVICES}".strip()
    import jax

    if jax.device_count() < 8:
        raise UsageError(f"this needs 8 devices, and JAX started with {jax.device_count()}: set XLA_FLAGS={_DEVICES}")


def measured(cell: Cell, rounds: int, limit_s: float) -> dict[str, dict[str, Any]]:
    """Figures of each arm, by its name. All are compiled first; then they are timed in turn, to and fro."""
    import jax

    ready: Any = jax.block_until_ready
    mesh = mesh_of(cell, jax.devices())
    values = arguments(cell, mesh)
    arms = {name: compiled(cell, name, mesh) for name in ARMS}
    expected = reference(cell, values)
    errors = {name: error(arm.run(*values), expected) for name, arm in arms.items()}
    seconds: dict[str, list[float]] = {name: [] for name in ARMS}
    started = time.perf_counter()
    for turn in range(rounds):
        if turn >= _LEAST and time.perf_counter() - started > limit_s:
            break
        for name in ARMS if turn % 2 == 0 else reversed(ARMS):
            begin = time.perf_counter()
            ready(arms[name].run(*values))
            seconds[name].append(time.perf_counter() - begin)
    return {
        name: {
            "seconds_median": median(seconds[name]),
            "seconds_min": min(seconds[name]),
            "rounds": len(seconds[name]),
            **figures(cell, arm),
            "max_rel_error": errors[name],
        }
        for name, arm in arms.items()
    }


def report(found: dict[str, Any]) -> str:
    """The figures as a table, and each relative to the seed's setting."""
    timed = "seconds_median" in next(iter(found["arms"].values()))
    head = ("arm", "table AG/AR/RS/A2A", "other/CP", "MB", "vs seed", "matmul", "temp MiB", "vs seed")
    rows = [(*head, *(("s med (min)", "vs seed", "error") if timed else ("covered",)), "split")]
    base = found["arms"]["seed"]
    for name, arm in found["arms"].items():
        counts = "/".join(str(arm[f"table_{kind}"]) for kind in _TABLE)
        row = [
            name,
            counts,
            f"{arm['other_collectives']}/{arm['permutes']}",
            f"{arm['bytes'] / 1e6:,.1f}",
            f"{arm['bytes'] / base['bytes']:.2f}",
            f"{arm['matmul_over_ideal']:.2f}",
            f"{arm['temp_bytes'] / 2**20:,.1f}",
            f"{arm['temp_bytes'] / base['temp_bytes']:.2f}",
        ]
        if timed:
            row.append(f"{arm['seconds_median']:.3f} ({arm['seconds_min']:.3f})")
            row.append(f"{arm['seconds_median'] / base['seconds_median']:.2f}")
            row.append(f"{arm['max_rel_error']:.1e}")
        else:
            row.append(f"{arm['covered']:.2f}")
        rows.append((*row, arm["strategy"]))
    return f"layout {found['layout']}\n\n{aligned(rows)}"


COMMAND = Command(
    name="bench logps",
    operands="",
    summary="The sharded log-prob head beside what the compiler makes of a chunked one: bytes, memory, time, error.",
    examples=(
        ("bench logps", "five arms on eight devices of the processor"),
        ("bench logps --layout few-tokens --json", "a large vocabulary for few tokens; for scripts"),
        ("bench logps --layout needed-50", "log-probs of half of the tokens"),
        ("bench logps --tpu-topology tpu7x:4x4x8", "ahead of time for 256 TPUs, without any"),
    ),
    run=_run,
    define=_define,
    details="""\
Each arm computes log-probs and entropies, and the gradient of a weighted sum of them by hidden states and table.
`gspmd` is a rematerialised scan over chunks of the sequence that the compiler shards; `gspmd-fixed` is that with the
table gathered once and chunks taken inside each shard; `seed` is the kernel where each device gathers the whole table;
`auto` is the kernel as it plans itself; `one-pass` takes gradients from the forward sweep. With --tpu-topology there is
`auto-small` too, planned within a fifth of the memory that `seed` is to take. Bytes are those that one
device sends, counted in the compiled program with trip counts multiplied; `matmul` is FLOPs over four matmuls of the
needed tokens; `error` is the largest of values and gradients, as a part of the largest number of their array, by a
float64 reference.""",
)
