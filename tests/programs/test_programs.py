"""The built-in programs: their names, what each does, and that its lines are those of its file."""

from __future__ import annotations

from pathlib import Path

import pytest

import steptrace
from steptrace import programs
from steptrace.ir.builtin import BUILTIN
from steptrace.ir.program import walk
from steptrace.ir.verify import verify


def kinds(name: str, **params) -> list[str]:
    return [op.kind for op in steptrace.trace(programs.load(name), **params).ops()]


def test_the_names_are_the_modules():
    folder = Path(programs.__file__).parent
    assert sorted(programs.NAMES) == sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")


@pytest.mark.parametrize("name", programs.NAMES)
@pytest.mark.parametrize("staleness", [0, 2])
def test_each_program_verifies_and_is_the_same_every_time(name, staleness):
    definition = programs.load(name)
    traced = steptrace.trace(definition, staleness=staleness)
    verify(traced)
    assert traced == steptrace.trace(definition, staleness=staleness)
    assert (traced.name, traced.contract.staleness, traced.kinds) == (name, staleness, ())
    assert {op.kind for op in traced.ops()} <= set(BUILTIN)
    assert {op.loc.file for op in traced.ops()} == {str(Path(programs.__file__).parent / f"{name}.py")}


@pytest.mark.parametrize("name", programs.NAMES)
def test_each_program_says_what_it_is_and_where_it_comes_from(name):
    definition = programs.load(name)
    assert "arXiv:" in definition.doc
    assert {"prompts", "samples", "save_every"} <= {parameter.name for parameter in definition.parameters}


def test_grpo_is_the_plain_step():
    assert kinds("grpo") == [
        *("sync_weights", "on_step_begin", "dispatch", "take", "reward", "advantages", "pack"),
        *("next_mb", "ref_logps", "fwd_bwd", "update", "get_metrics", "save_checkpoint"),
        *("sync_weights", "commit", "log", "on_step_end", "free"),
    ]


def test_grpo_parameters_reach_the_ops():
    traced = steptrace.trace(programs.load("grpo"), prompts=3, samples=5, save_every=7)
    found = {op.id: op for op in traced.ops()}
    assert found["dispatch"].attrs == (("prompts", 3), ("samples", 5))
    assert str(found["save_checkpoint"].when) == "every 7"
    assert traced.params == (("prompts", 3), ("samples", 5), ("save_every", 7))


@pytest.mark.parametrize(
    ("name", "estimator"),
    [
        ("grpo", "grpo"),
        ("dr_grpo", "dr_grpo"),
        ("rloo", "rloo"),
        ("reinforce_pp", "reinforce_pp"),
        ("grpo_stream", "grpo"),
        ("grpo_epochs", "grpo"),
    ],
)
def test_each_program_uses_its_estimator(name, estimator):
    traced = steptrace.trace(programs.load(name))
    assert [op.attr("estimator") for op in traced.ops() if op.attr("estimator")] == [estimator]


def test_dr_grpo_has_no_reference():
    assert "ref_logps" not in kinds("dr_grpo")
    assert "ref_logps" in kinds("grpo")


def test_the_streaming_form_takes_inside_the_loop():
    assert "take" not in kinds("grpo_stream")
    assert kinds("grpo_stream").count("stream_mb") == 1


def test_the_epochs_update_once_for_each_mini_batch_of_each_epoch():
    traced = steptrace.trace(programs.load("grpo_epochs"), epochs=3, mini_batches=5)
    loops = {op.kind: around for op, around in walk(traced.body)}
    assert [(loop.kind, loop.count) for loop in loops["update"]] == [("repeat", 3), ("mini_batches", 5)]
    assert [loop.kind for loop in loops["fwd_bwd"]] == ["repeat", "mini_batches", "micro_batches"]
    assert loops["sync_weights"] == ()
