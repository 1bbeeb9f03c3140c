"""Parts that are defined in the user's script, which a worker loads once and only when it needs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from steptrace.workers import script

GUARDED = """
import sys
import numpy as np
from dataclasses import dataclass
from steptrace.workers import Worker, remote

print("loaded as", __name__, file=sys.stderr)


@dataclass(frozen=True)
class Point:
    x: int
    array: np.ndarray


class Part:
    def __init__(self, x: int):
        self.x = x

    def point(self, other: Point) -> Point:
        assert isinstance(other, Point)
        return Point(self.x + other.x, other.array + 1)


if __name__ == "__main__":
    worker = Worker.start(remote(Part, 3))
    back = worker.call("point", Point(4, np.zeros(2)))
    assert type(back) is Point
    print(back.x, back.array.tolist())
    worker.close()
"""

UNGUARDED = """
from steptrace.workers import Worker, remote


class Part:
    pass


worker = Worker.start(remote(Part))
"""

OF_A_MODULE = """
import sys
from steptrace.workers import Worker, remote

print("loaded as", __name__, file=sys.stderr)

if __name__ == "__main__":
    worker = Worker.start(remote(dict, a=1))
    print(worker.call("get", "a"))
    worker.close()
"""


def run(tmp_path: Path, text: str, *way: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "job.py").write_text(text)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    return subprocess.run([sys.executable, *way], cwd=tmp_path, capture_output=True, text=True, env=env)


@pytest.mark.parametrize("way", [("job.py",), ("-m", "job")])
def test_a_part_defined_in_the_script_is_found(tmp_path: Path, way: tuple[str, ...]):
    done = run(tmp_path, GUARDED, *way)
    assert done.stdout == "7 [1.0, 1.0]\n", done.stderr
    assert done.stderr.splitlines() == ["loaded as __main__", "loaded as __mp_main__"]


def test_a_script_of_which_nothing_is_needed_is_not_loaded_again(tmp_path: Path):
    done = run(tmp_path, OF_A_MODULE, "job.py")
    assert done.stdout == "1\n", done.stderr
    assert done.stderr.splitlines() == ["loaded as __main__"]


def test_a_script_without_a_guard_is_refused_and_starts_nothing_for_ever(tmp_path: Path):
    done = run(tmp_path, UNGUARDED, "job.py")
    assert done.returncode == 1
    last = done.stderr[done.stderr.rindex("error[ST619]") :]
    assert "starts a worker when it is loaded, and a worker is loading it" in last
    assert '__name__ == "__main__"' in last


def test_what_is_typed_is_refused(tmp_path: Path):
    text = "import steptrace\nclass Part: pass\nsteptrace.remote(Part)"
    done = run(tmp_path, "", "-c", text)
    assert "error[ST610]: another process cannot import `Part`, which was typed at a prompt" in done.stderr


def test_names_of_other_modules_are_left_alone():
    assert script.module_of("json.decoder") == "json.decoder"
    assert script.module_of("__mp_main__") == script.module_of("__main__") == "__main__"
