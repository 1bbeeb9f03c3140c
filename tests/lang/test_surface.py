"""The public names, and what `import steptrace` does not load."""

from __future__ import annotations

import subprocess
import sys
import types

import pytest

import steptrace

HEAVY = ("jax", "jaxlib", "numpy", "flax", "optax", "orbax", "chex", "steptrace.run")


def loaded_after(code: str) -> list[str]:
    report = f"{code}\nimport sys\nprint(*[name for name in {HEAVY!r} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, check=True)
    return run.stdout.split()


@pytest.mark.parametrize(
    "code",
    [
        "import steptrace",
        "import steptrace; [getattr(steptrace, n) for n, h in steptrace._HOME_OF.items() if not h.startswith('run')]",
        "from steptrace.lang.reference import resolve; resolve('grpo{staleness=1}')",
    ],
)
def test_nothing_heavy_is_loaded(code):
    assert loaded_after(code) == []


def test_control_a_heavy_import_is_seen():
    assert loaded_after("import numpy") == ["numpy"]


def test_importing_loads_no_room_at_all():
    assert loaded_after("import steptrace; assert 'steptrace.lang' not in __import__('sys').modules") == []


def test_every_public_name_is_there_and_documented():
    for name in steptrace.__all__:
        if name != "run":
            assert getattr(steptrace, name).__doc__, name
    assert set(steptrace.__all__) <= set(dir(steptrace))


def test_a_name_that_is_not_public_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'tracer'"):
        _ = steptrace.tracer


def test_names_for_type_checkers_are_those_at_run_time():
    import ast
    import inspect

    tree = ast.parse(inspect.getsource(steptrace))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    typed = {alias.name for node in block.body for alias in node.names}
    assert typed == set(steptrace.__all__)
    assert isinstance(steptrace, types.ModuleType)
