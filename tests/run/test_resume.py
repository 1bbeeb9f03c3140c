"""A run that ends at any moment and is resumed leaves what a run leaves that went through."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import steptrace
from crashes import Clock, Crash, read_lines, run_in
from fakes import parts
from steptrace.programs.grpo import grpo
from steptrace.programs.grpo_epochs import grpo_epochs
from steptrace.programs.grpo_stream import grpo_stream
from steptrace.run import manifest, store
from steptrace.run.store import checkpoints

SMALL = {"prompts": 3, "samples": 2, "save_every": 2}


@pytest.fixture
def quick_trees(monkeypatch):
    """Published weights are pickled: Orbax has a test of its own and takes a hundred times as long."""

    def save(directory: Path, tree) -> None:
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.write_bytes(pickle.dumps(tree))

    monkeypatch.setattr(manifest, "save_tree", save)
    monkeypatch.setattr(manifest, "restore_tree", lambda directory, like: pickle.loads(directory.read_bytes()))


def crashed_and_resumed(out: Path, program, stop: int, **options):
    out.mkdir()
    with pytest.raises(Crash):
        run_in(out, program, stop=stop, **options)
    return run_in(out, program, **options)[0]


def some(moments: list[str]) -> range:
    """Every moment of the second and the third cycle of two steps, so with and without a checkpoint before."""
    syncs = [index for index, what in enumerate(moments) if what == "before trainer.save_checkpoint"]
    return range(syncs[0] - 3, syncs[1] + 14)


@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_a_crash_around_a_checkpoint(tmp_path, quick_trees, staleness):
    program = grpo.trace(**SMALL, staleness=staleness)
    whole, clock = run_in(tmp_path / "whole", program)
    first = clock.moments.index("before trainer.save_checkpoint")
    for stop in (first - 1, first, first + 1, first + 5, first + 8, len(clock.moments) - 1):
        left = crashed_and_resumed(tmp_path / f"at {stop}", program, stop)
        assert left == whole, clock.moments[stop]


@pytest.mark.slow
@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_a_crash_at_every_moment_of_two_steps_and_more(tmp_path, quick_trees, staleness):
    program = grpo.trace(**SMALL, staleness=staleness)
    whole, clock = run_in(tmp_path / "whole", program)
    for stop in some(clock.moments):
        left = crashed_and_resumed(tmp_path / f"at {stop}", program, stop)
        assert left == whole, clock.moments[stop]


@pytest.mark.slow
@pytest.mark.parametrize("program", [grpo_epochs, grpo_stream], ids=lambda program: program.name)
def test_other_shapes_of_the_step_resume_alike(tmp_path, quick_trees, program):
    traced = program.trace(**SMALL, staleness=1)
    whole, clock = run_in(tmp_path / "whole", traced)
    for stop in list(some(clock.moments))[::3]:
        assert crashed_and_resumed(tmp_path / f"at {stop}", traced, stop) == whole, clock.moments[stop]


def test_two_crashes_in_one_run(tmp_path, quick_trees):
    program = grpo.trace(**SMALL, staleness=1)
    whole, clock = run_in(tmp_path / "whole", program, steps=7)
    out = tmp_path / "out"
    for stop in (len(clock.moments) // 2, len(clock.moments) // 4):
        with pytest.raises(Crash):
            run_in(out, program, stop=stop, steps=7)
    assert run_in(out, program, steps=7)[0] == whole
