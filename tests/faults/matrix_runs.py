"""Matrices of faults and crashes, run by a fresh process: it forks, which one that has computed by JAX must not."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import threading
from typing import Any

HEAD = """
import json, threading, time
from steptrace.testing import crash_matrix, durable_runs, fault_cells, fault_matrix, hash_parts
from steptrace.testing.crash_matrix import crash_rows
from steptrace.testing.durable_runs import ARMS, FAULTY
from steptrace.testing.fault_matrix import fault_rows

def arms(*names):
    return [arm for arm in ARMS if arm.name in names]
"""


def rows_of(code: str) -> list[dict[str, Any]]:
    """The rows that a piece of code leaves in ``rows``."""
    text = HEAD + textwrap.dedent(code) + "\nprint(json.dumps([row.facts() for row in rows]))\n"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    assert rows, "the code has run no cell"
    return rows


def wrong(rows: list[dict[str, Any]]) -> list[str]:
    """What is not as declared, in words."""
    return [f"{row['arm']}: {row['op']} of step {row['step']}: {row['why']}" for row in rows if not row["as_declared"]]


def no_lane_is_left() -> bool:
    """Whether every lane's thread is gone."""
    return not [thread for thread in threading.enumerate() if thread.name.startswith("steptrace-")]
