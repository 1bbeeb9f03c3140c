"""The rooms of the package: who may import whom, which rooms load without jax, and no circles."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = {"steptrace": "steptrace", "steptrace_kernels": "kernels", "steptrace_tools": "tools"}

GROUND = {"diag", "ir", "check", "motion", "passes", "lang", "lower"}
MAY_IMPORT = {
    "kernels": set(),
    "diag": set(),
    "ir": {"diag"},
    "check": {"diag", "ir"},
    "motion": {"diag", "ir", "check"},
    "passes": {"diag", "ir", "check", "motion", "cost", "simulate"},
    "lang": {"diag", "ir"},
    "programs": {"lang"},
    "lower": {"diag", "ir", "check", "lang"},
    "simulate": {"diag", "ir", "lower"},
    "cost": {"diag", "ir", "check", "motion", "lower", "simulate"},
    "timeline": {"diag", "ir", "lower", "simulate", "cost"},
    "workers": {"diag"},
    "run": {*GROUND, "workers", "simulate", "cost", "timeline", "kernels"},
    "steptrace": {*GROUND, "programs", "workers", "run"},
    "testing": {*GROUND, "programs", "simulate", "workers", "run", "kernels", "steptrace"},
    "tools": {*GROUND, "programs", "simulate", "cost", "timeline", "workers", "run", "kernels", "steptrace", "testing"},
}
"""Each room and those it may import; `steptrace` is the top of the package, which hands out public names."""

WITHOUT_JAX = (*sorted(GROUND), "programs", "simulate", "cost", "timeline", "workers", "steptrace")
HEAVY = {"jax", "jaxlib", "numpy", "flax", "optax", "orbax", "chex", "rich", "matplotlib"}


def sources() -> dict[str, str]:
    """Source text by module name, of every module that is installed."""
    found = {}
    for package, folder in FOLDERS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = (package, *path.relative_to(ROOT / folder).with_suffix("").parts)
            found[".".join(parts).removesuffix(".__init__")] = path.read_text()
    return found


def imported(name: str, source: str, modules: set[str]) -> Iterator[tuple[str, int]]:
    """Modules of ours that ``source`` imports, with the line; those for type checkers only are left out."""
    pending: list[ast.AST] = [ast.parse(source)]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            pending += node.orelse
            continue
        pending += ast.iter_child_nodes(node)
        for target in _targets(node, name, modules):
            if target.partition(".")[0] in FOLDERS:
                yield target, getattr(node, "lineno", 0)


def _targets(node: ast.AST, name: str, modules: set[str]) -> list[str]:
    """The modules that one node imports."""
    match node:
        case ast.Import(names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module, names, level):
            base = module or ""
            if level:
                package = name.split(".") if _is_package(name, modules) else name.split(".")[:-1]
                base = ".".join([*package[: len(package) - level + 1], *([module] if module else [])])
            inner = [f"{base}.{alias.name}" for alias in names]
            return [module if module in modules else base for module in inner]
        case ast.Call(ast.Attribute(attr="import_module"), [ast.Constant(str() as target), *_]):
            return [target]
    return []


def _is_package(name: str, modules: set[str]) -> bool:
    return any(module.startswith(name + ".") for module in modules)


def room(module: str) -> str:
    """The room a module belongs to."""
    package, _, rest = module.partition(".")
    if package == "steptrace":
        return rest.partition(".")[0] or "steptrace"
    return FOLDERS[package]


def trespasses(texts: dict[str, str]) -> list[str]:
    """Every import that goes against the order of the rooms."""
    return [
        f"{name}:{line} imports {target}"
        for name, source in texts.items()
        for target, line in imported(name, source, set(texts))
        if room(target) not in {room(name), *MAY_IMPORT[room(name)]}
    ]


def circles(texts: dict[str, str]) -> list[str]:
    """Modules that lie on a circle of imports, those inside functions included."""
    graph = {name: {target for target, _ in imported(name, text, set(texts))} - {name} for name, text in texts.items()}
    while True:
        leaves = {name for name, targets in graph.items() if not targets & graph.keys()}
        if not leaves:
            break
        graph = {name: targets for name, targets in graph.items() if name not in leaves}
    while True:
        reached = set().union(*graph.values()) if graph else set()
        if graph.keys() <= reached:
            return sorted(graph)
        graph = {name: targets for name, targets in graph.items() if name in reached}


def loaded_after(statement: str) -> set[str]:
    """Top-level modules that a fresh interpreter has loaded after ``statement``."""
    code = f"{statement}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(run.stdout.split())


def test_every_room_has_a_place_in_the_order():
    assert {room(name) for name in sources()} <= MAY_IMPORT.keys()


def test_imports_run_one_way():
    assert trespasses(sources()) == []


def test_no_module_lies_on_a_circle():
    assert circles(sources()) == []


@pytest.mark.parametrize("name", WITHOUT_JAX)
def test_every_module_of_the_room_loads_without_jax_and_numpy(name: str):
    modules = [module for module in sources() if room(module) == name]
    assert not modules or loaded_after(f"import {', '.join(modules)}") & HEAVY == set()


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("steptrace.ir.lie", "from steptrace.lang import records"),
        ("steptrace.ir.lie", "def late():\n    import steptrace.run.job"),
        ("steptrace.diag.lie", "from ..ir import types"),
        ("steptrace.diag.lie", "import importlib\nimportlib.import_module('steptrace.ir')"),
        ("steptrace_kernels.lie", "import steptrace"),
        ("steptrace.testing.lie", "import steptrace_tools.cli"),
    ],
)
def test_control_an_import_against_the_order_is_caught(name: str, source: str):
    assert len(trespasses({**sources(), name: source})) == 1 + len(trespasses(sources()))


def test_control_an_import_for_type_checkers_only_is_none():
    source = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import steptrace.run"
    assert trespasses({"steptrace.ir.fine": source}) == []


def test_control_a_circle_is_caught():
    texts = {
        "steptrace.ir.a": "from steptrace.ir.b import x",
        "steptrace.ir.b": "def late():\n    from steptrace.ir import a",
        "steptrace.ir.user": "import steptrace.ir.a",
        "steptrace.ir.leaf": "",
    }
    assert circles(texts) == ["steptrace.ir.a", "steptrace.ir.b"]


def test_control_a_load_of_numpy_is_seen():
    assert "numpy" in loaded_after("import numpy")
