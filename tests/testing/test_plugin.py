"""The pytest plugin, as a user's tests see it: in a folder of their own, by `python -m pytest`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

GOOD = "--- in\ngrpo\n--- edit\nmove commit before sync_weights\n--- error ST204\n"
SLOW = "--- in\ngrpo\n--- equal slow\n"


@pytest.fixture
def run(tmp_path: Path):
    """Runs pytest in a folder with these files."""

    def go(files: dict[str, str], *arguments: str, **environment: str) -> tuple[int, str]:
        for name, text in files.items():
            (tmp_path / name).write_text(text)
        clean = {name: value for name, value in os.environ.items() if name not in ("CI", "STEPTRACE_UPDATE")}
        line = [sys.executable, "-m", "pytest", "-q", "--strict-markers", "-p", "no:cacheprovider", *arguments]
        done = subprocess.run(
            line, cwd=tmp_path, env={**clean, **environment}, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout + done.stderr

    return go


def test_case_files_are_tests_named_after_their_files(run):
    code, out = run({"commit_first.case": GOOD, "wrong.case": GOOD.replace("ST204", "ST205")}, "-rA")
    assert code == 1
    assert "PASSED commit_first.case::commit_first" in out
    assert "wrong.case: refused with ST204, not ST205:\nerror[ST204]: `commit` of step k would run before" in out
    assert "Traceback" not in out


def test_a_slow_case_can_be_left_out(run):
    code, out = run({"a.case": GOOD, "b.case": SLOW}, "-m", "not slow")
    assert code == 0
    assert "1 passed, 1 deselected" in out


def test_an_update_rewrites_and_says_so_but_not_in_ci(run, tmp_path: Path):
    files = {"a.case": GOOD}
    code, out = run(files, STEPTRACE_UPDATE="1")
    assert code == 0
    assert (tmp_path / "a.case").read_text().startswith(GOOD + "error[ST204]: ")
    code, out = run(files, STEPTRACE_UPDATE="1", CI="true")
    assert code == 4
    assert "STEPTRACE_UPDATE is set, but so is CI" in out
    assert (tmp_path / "a.case").read_text() == GOOD


def test_control_without_the_plugin_no_case_is_collected(run):
    code, out = run({"a.case": GOOD}, "-p", "no:steptrace")
    assert code == 5
    assert "no tests ran" in out
