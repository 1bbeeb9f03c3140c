"""The log-prob head on a mesh that two processes share: what each makes of its own part is what one process makes.

Tensors are small: with jax 0.10 a message between processes takes tens of milliseconds, and large ones many.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from head_cases import STRATEGIES, expected

SCRIPT = Path(__file__).with_name("head_in_processes.py")
DEADLINE_S = 240
ULP = 2.0**-24


def in_processes(count: int, folder: Path, *more: str) -> dict[str, np.ndarray]:
    """What that many processes make together; one that hangs is killed, whatever it does with other signals."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    file = folder / f"{count}{''.join(more)}.npz"
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={8 // count}",
        "PYTHONPATH": os.pathsep.join([str(SCRIPT.parents[1] / "mesh"), os.environ.get("PYTHONPATH", "")]),
    }
    running = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(rank), str(count), port, str(file), *more],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(count)
    ]
    try:
        said = [process.communicate(timeout=DEADLINE_S)[0] for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    assert [process.returncode for process in running] == [0] * count, "\n".join(text[-3000:] for text in said)
    with np.load(file) as made:
        return dict(made)


@pytest.fixture(scope="module")
def one(tmp_path_factory) -> dict[str, np.ndarray]:
    return in_processes(1, tmp_path_factory.mktemp("one"))


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> dict[str, np.ndarray]:
    return in_processes(2, tmp_path_factory.mktemp("two"))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_two_processes_make_what_one_does(one, two, strategy):
    """Bit for bit, but for gradients, whose sums over eight devices are made in another order."""
    names = [name.partition("/")[2] for name in one if name.startswith(f"{strategy}/")]
    assert len(names) == 6
    for name in names:
        found, want = two[f"{strategy}/{name}"], one[f"{strategy}/{name}"]
        if name in ("logp", "entropy", "lse"):
            np.testing.assert_array_equal(found, want, err_msg=name)
        else:
            np.testing.assert_allclose(found, want, rtol=0, atol=8 * ULP * np.max(np.abs(want)), err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_two_processes_make_what_the_formula_says(two, strategy):
    for key, want in expected().items():
        found = two[f"{strategy}/{key}"].astype(np.float64)
        size = np.max(np.abs(want))
        np.testing.assert_allclose(found / size, want / size, rtol=0, atol=2e-6, err_msg=f"{strategy}/{key}")


@pytest.mark.slow
def test_control_one_process_that_sends_its_neighbour_nothing_is_seen(one, tmp_path):
    """Every process must take part: without the exchange over processes log-probs at its border differ."""
    broken = in_processes(2, tmp_path, "no-shift")
    differ = {name for name in one if not np.array_equal(broken[name], one[name])}
    assert {f"{strategy}/logp" for strategy in STRATEGIES} <= differ
