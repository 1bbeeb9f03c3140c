"""Start of a worker's process, and what it is told."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from steptrace.workers import script

_CODE = (
    "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    "import json, sys; boot = json.loads(sys.stdin.buffer.raw.readline()); sys.path[:] = boot['path']; "
    "from steptrace.workers.serve import main; main(boot)"
)


_SETTINGS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_num_cpu_devices",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
    "jax_platforms",
    "jax_threefry_partitionable",
)
"""Settings of JAX on which results depend."""


def launch(name: str, boot: Mapping[str, object], log: Path | None) -> subprocess.Popen[bytes]:
    """Start a worker's process: same interpreter, environment and search path as this one, nothing else shared.

    The secret goes through the process's standard input, which stays open: its end tells the worker that the driver
    is gone. What the worker prints goes to standard error, or to ``log``.

    Args:
      name: the worker's name, seen in lists of processes.
      boot: what ``serve.main`` is told.
      log: a file that takes the worker's output.
    """
    told = {
        **boot,
        "path": [entry or os.getcwd() for entry in sys.path if isinstance(entry, str)],
        "script": script.here(),
    }
    output = 2 if log is None else os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", _CODE, "steptrace-worker", name],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env=_environment(),
            process_group=0,  # Ctrl-C reaches the driver, which closes its workers
        )
    finally:
        if log is not None:
            os.close(output)
    assert process.stdin is not None, "standard input is a pipe"
    try:
        process.stdin.write(json.dumps(told).encode() + b"\n")
        process.stdin.flush()
    except BrokenPipeError:
        pass  # it ended already, which is seen when it does not come in
    return process


def _environment() -> dict[str, str]:
    """The environment, and as a part of it what this process has set in JAX by other ways."""
    jax = sys.modules.get("jax")
    values = {} if jax is None else {name: jax.config.values.get(name) for name in _SETTINGS}
    given = {name: value for name, value in values.items() if value is not None}
    return {**os.environ, **{name.upper(): str(value) for name, value in given.items()}}


def lives(process: subprocess.Popen[bytes]) -> bool:
    """Whether a process runs. One that has ended is not waited for: until ``end``, its number stays its own."""
    if process.returncode is not None or not hasattr(os, "waitid"):
        return process.poll() is None
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except ChildProcessError:  # somebody else has waited for it
        return process.poll() is None


def let_end(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Give a process so long to end by itself."""
    limit = time.monotonic() + seconds
    while lives(process) and time.monotonic() < limit:
        time.sleep(0.005)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process, if it has not ended, and what it has forked and left."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
    process.wait()


def ended(process: subprocess.Popen[bytes]) -> str:
    """How a process ended, in words."""
    code = process.returncode
    if code is None:
        return "did not answer"
    if code >= 0:
        return f"ended with exit code {code}"
    return f"was ended by signal {-code} ({_signal_name(-code)})"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def seconds_computed(pid: int) -> float | None:
    """CPU time of a process so far, None where the system does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
