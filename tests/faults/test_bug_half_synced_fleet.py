"""A sync that fails on one of several engines: none stays paused, none serves the version, the round is cancelled."""

from __future__ import annotations

import pytest
from fakes import HashRollout, parts

import steptrace
from steptrace.diag.running import UnpublishedWeightsError
from steptrace.run.rollout import Fleet

PROGRAM = "grpo{staleness=1, prompts=4, samples=2}"
STEPS = 4


class Engine(HashRollout):
    """An engine that is paused while it takes weights, and may fail once at a version, in one of the calls."""

    def __init__(self, fails: str = "", version: int = 2):
        super().__init__()
        self.fails, self.at, self.paused, self.last = fails, version, False, -1

    def trouble(self, where):
        if self.fails == where and self.last + 1 == self.at:
            self.fails = ""
            raise ConnectionError(f"lost in {where}")

    def pause(self):
        self.paused = True
        self.trouble("pause")

    def resume(self):
        self.paused = False

    def apply_weights(self, weights, version):
        assert self.paused, "weights while it generates"
        if self.fails == "apply, half taken":
            self.last = version - 1
            super().apply_weights(weights, version) if version == self.at else None
        self.trouble("apply")
        self.trouble("apply, half taken")
        if version not in self.held:
            super().apply_weights(weights, version)
        self.last = version

    def generate(self, *args, **how):
        assert not self.paused, "it is paused"
        return super().generate(*args, **how)


def fleet(fails=""):
    return [Engine(), Engine(fails), Engine()]


def run(engines, pipeline, **options):
    return steptrace.run(
        PROGRAM, parts(rollout=Fleet(engines)), steps=STEPS, pipeline=pipeline, stall_s=30.0, **options
    )


@pytest.mark.parametrize("fails", ["pause", "apply", "apply, half taken"])
def test_a_round_beside_the_step_that_fails_on_the_second_engine_is_made_again_on_all(fails):
    engines = fleet(fails)
    assert run(engines, "async-everything").params_digest == run(fleet(), "").params_digest
    assert [engine.fails for engine in engines] == [""] * 3
    assert [engine.paused for engine in engines] == [False] * 3


@pytest.mark.parametrize("fails", ["pause", "apply", "apply, half taken"])
def test_a_round_that_fails_on_the_second_engine_is_no_ones(fails):
    engines = fleet(fails)
    with pytest.raises(ConnectionError, match="lost in") as info:
        run(engines, "")
    assert "engine 1 of 3, in " in info.value.__notes__[0]
    assert any("of step 1, lane " in note for note in info.value.__notes__)
    assert [engine.paused for engine in engines] == [False] * 3
    assert [sorted(engine.held) for engine in engines] == [[]] * 3
    wanted = run(fleet(), "")
    assert run(engines, "").params_digest == wanted.params_digest


def test_what_was_served_before_is_served_on_and_the_round_can_be_tried_again():
    engines = fleet("apply")
    together = Fleet(engines)
    weights = parts()["trainer"].weights()[0]
    together.apply_weights(weights, 0)
    together.apply_weights(weights, 1)
    with pytest.raises(ConnectionError):
        together.apply_weights(weights, 2)
    assert [sorted(engine.held) for engine in engines] == [[0, 1]] * 3
    with pytest.raises(UnpublishedWeightsError):
        together.generate([], 1, version=2, key=None)
    together.apply_weights(weights, 2)
    assert [sorted(engine.held) for engine in engines] == [[0, 1, 2]] * 3


def test_every_prompt_gets_its_completions_whatever_the_number_of_engines():
    made = run(fleet(), "")
    assert made.steps == STEPS
    alone = steptrace.run(PROGRAM, parts(), steps=STEPS)
    assert made.trained_groups_digest == alone.trained_groups_digest


class Careless(Fleet):
    """Takes the intent for the outcome: resumes nobody, and leaves the version with those that took it."""

    def apply_weights(self, weights, version):
        for engine in self._engines:
            engine.pause()
            engine.apply_weights(weights, version)
        for engine in self._engines:
            engine.resume()
        self._confirmed.add(version)


def test_control_a_round_that_nobody_cancels_leaves_engines_paused_and_apart():
    engines = fleet("apply")
    careless = Careless(engines)
    weights = parts()["trainer"].weights()[0]
    careless.apply_weights(weights, 0)
    careless.apply_weights(weights, 1)
    with pytest.raises(ConnectionError):
        careless.apply_weights(weights, 2)
    assert [engine.paused for engine in engines] == [True, True, False]
    assert [sorted(engine.held) for engine in engines] == [[0, 1, 2], [0, 1], [0, 1]]
