"""What gets installed: every package is listed, and the wheel has the templates, the licence and the console script."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETUP = PROJECT["tool"]["setuptools"]


def packages_on_disk() -> set[str]:
    """Every folder with an `__init__.py`, by the name it is installed under."""
    found = set()
    for package, folder in SETUP["package-dir"].items():
        for init in (ROOT / folder).rglob("__init__.py"):
            found.add(".".join((package, *init.parent.relative_to(ROOT / folder).parts)))
    return found


def test_every_package_is_listed_for_installation():
    assert sorted(SETUP["packages"]) == sorted(packages_on_disk())


def test_every_dependency_has_a_tested_version():
    pinned = {line.partition("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    extras = PROJECT["project"]["optional-dependencies"]
    wanted = [*PROJECT["project"]["dependencies"], *extras["dev"], *extras["tasks"], *extras["tensorboard"]]
    assert {requirement.partition(">")[0].lower() for requirement in wanted} <= pinned


@pytest.mark.slow
def test_a_wheel_has_all_that_an_installation_needs(tmp_path: Path):
    source = tmp_path / "source"
    for folder in SETUP["package-dir"].values():
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    line = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, source]
    subprocess.run(line, check=True, capture_output=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        names = set(wheel.namelist())
        scripts = wheel.read(next(name for name in names if name.endswith("entry_points.txt"))).decode()
    assert "steptrace = steptrace_tools.cli:main" in scripts
    assert {"steptrace/py.typed", "steptrace_tools/templates/job.py.txt", "steptrace_kernels/__init__.py"} <= names
    assert {f"steptrace/timeline/page.{kind}" for kind in ("html", "css", "js")} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert {name.partition("/")[0] for name in names if name.endswith(".py")} == set(SETUP["package-dir"])
