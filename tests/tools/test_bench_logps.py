"""`steptrace bench logps`: its figures, its table, and that it starts JAX with the devices it needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from steptrace_tools.bench.logps import report
from steptrace_tools.bench.logps_cells import ARMS, CELLS, Cell
from steptrace_tools.cli import main

SMALL = """
import sys
from steptrace_tools.bench import logps
from steptrace_tools.bench.logps_cells import CELLS, Cell
CELLS["L1k"] = Cell(4, 32, 40, 56, chunks=8, steps=4)
CELLS["needed-50"] = Cell(4, 32, 40, 56, chunks=8, steps=4, needed=0.5)
from steptrace_tools.cli import main
sys.exit(main(sys.argv[1:]))
"""


def measured(*flags: str) -> dict:
    """What the command prints last, on a small cell, in a process whose environment names no devices."""
    environment = {key: value for key, value in os.environ.items() if key not in ("XLA_FLAGS", "JAX_PLATFORMS")}
    command = [sys.executable, "-c", SMALL, "bench", "logps", "--json", "--rounds", "1", *flags]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_all_arms_in_one_process_with_eight_devices():
    found = measured()
    assert found["layout"] == "L1k"
    assert tuple(found["arms"]) == ARMS
    arms = found["arms"]
    assert arms["gspmd"]["table_allgathers"] == 9
    assert arms["gspmd"]["table_allreduces"] == 8
    assert arms["seed"]["table_allgathers"] == arms["seed"]["table_reduce_scatters"] == 1
    assert all(arms[name]["table_allreduces"] == 0 for name in ("seed", "auto", "one-pass"))
    assert all(arms[name]["matmul_over_ideal"] == 1 for name in ("gspmd-fixed", "seed", "auto"))
    assert arms["one-pass"]["matmul_over_ideal"] == 0.75
    assert all(arm["max_rel_error"] < 2e-6 and arm["seconds_median"] > 0 for arm in arms.values())
    for name in ("seed", "auto", "one-pass"):
        assert arms[name]["predicted_bytes"] == pytest.approx(arms[name]["bytes"], rel=0.05)
    assert arms["auto"]["bytes"] <= arms["seed"]["bytes"] < arms["gspmd"]["bytes"]


@pytest.mark.slow
def test_half_of_the_tokens_are_computed_where_half_are_needed():
    arms = measured("--layout", "needed-50")["arms"]
    assert arms["auto"]["matmul_over_ideal"] == arms["seed"]["matmul_over_ideal"] == 1
    assert arms["gspmd"]["matmul_over_ideal"] > 1.9
    assert not arms["auto"]["trip_counts_told"]
    assert all(arm["max_rel_error"] < 2e-6 for arm in arms.values())


def test_sizes_of_the_layouts():
    cell = CELLS["L1k"]
    assert (cell.devices, cell.local_tokens, cell.chunk_tokens) == (8, 512, 32)
    assert cell.ideal_flops == 4 * 2 * 4096 * 7168 * 320 / 8
    assert CELLS["needed-50"].ideal_flops == cell.ideal_flops / 2
    assert CELLS["idle-axis"].local_tokens == 1024
    assert Cell(64, 65536, 4096, 248320, sizes=(32, 4, 2)).local_tokens == 16384


def test_the_table_is_relative_to_the_seeds_setting():
    arm = {
        "seconds_median": 2.0,
        "seconds_min": 1.0,
        "bytes": 4e6,
        "temp_bytes": 2**21,
        "table_allgathers": 1,
        "table_allreduces": 0,
        "table_reduce_scatters": 1,
        "table_exchanges": 2,
        "other_collectives": 5,
        "permutes": 3,
        "matmul_over_ideal": 1.0,
        "max_rel_error": 1e-7,
        "strategy": "vocabulary whole",
    }
    arms = {"seed": arm, "auto": arm | {"bytes": 1e6, "seconds_median": 0.5, "strategy": "vocabulary over context"}}
    row = next(line.split() for line in report({"layout": "L1k", "arms": arms}).splitlines() if line.startswith("auto"))
    assert row[:8] == ["auto", "1/0/1/2", "5/3", "1.0", "0.25", "1.00", "2.0", "1.00"]
    assert row[8:12] == ["0.500", "(1.000)", "0.25", "1.0e-07"]


@pytest.mark.skipif(find_spec("libtpu") is not None, reason="the compiler for TPUs is installed")
def test_without_the_compiler_for_tpus_it_says_so(capsys):
    assert main(["bench", "logps", "--tpu-topology", "tpu7x:4x4x8"]) == 1
    assert capsys.readouterr().err.startswith("error[ST602]: programs for TPUs need their compiler")
