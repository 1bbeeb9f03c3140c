"""Rounds of weights that get lost: done again from the same copy, or given up with what was published serving on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fakes import HashRollout, parts

import steptrace
from steptrace.diag.running import LostRoundError
from steptrace.ir import Program
from steptrace.programs.grpo import grpo
from steptrace.run.board import WeightBoard
from steptrace.run.sync_rounds import TRIES

ASYNC = "async-weight-sync"


class Lossy(HashRollout):
    """A rollout that some versions reach in part only, so many times; what has come of one is in the way of the next.

    Attributes:
      losses: how often each version gets lost.
      whole: versions that have come whole, in order.
      served: the version of each call of `generate`, and whether it was whole.
    """

    def __init__(self, losses, error=ConnectionError, *, late=False) -> None:
        super().__init__()
        self.losses, self.error, self.late = dict(losses), error, late
        self.whole: list[int] = []
        self.served: list[tuple[int, bool]] = []
        self.tried: list[int] = []

    def apply_weights(self, weights, version):
        self.tried.append(version)
        left = self.losses.get(version, 0)
        if left:
            self.losses[version] = left - 1
            half = {"w": np.asarray(weights["w"]) if self.late else np.full_like(weights["w"], np.nan)}
            super().apply_weights(half, version)
            raise self.error(f"version {version} got lost")
        super().apply_weights(weights, version)
        self.whole.append(version)

    def generate(self, prompts, samples, *, version, key):
        self.served.append((version, version in self.whole))
        return super().generate(prompts, samples, version=version, key=key)


def program(**options) -> Program:
    return grpo.trace(prompts=3, samples=2, **options)


def drive(rollout, traced=None, steps=5, pipeline=ASYNC):
    return steptrace.run(traced or program(staleness=1), parts(rollout=rollout), steps=steps, pipeline=pipeline)


def facts(result):
    return result.params_digest, result.calls_digest, result.trained_groups_digest, [dict(r) for r in result.records]


@pytest.mark.parametrize("error", [ConnectionError, TimeoutError, ConnectionResetError])
@pytest.mark.parametrize("late", [False, True])
def test_a_round_that_gets_lost_is_done_again_and_nothing_else_changes(error, late):
    rollout = Lossy({1: TRIES - 1, 3: 1}, error, late=late)
    result = drive(rollout)
    calm = drive(HashRollout())
    assert facts(result) == facts(calm)
    assert result.remarks == calm.remarks
    assert all(whole for _, whole in rollout.served)
    assert rollout.whole == [0, 1, 2, 3, 4, 5]


def test_control_without_a_clean_up_the_half_open_transfer_is_in_the_way(monkeypatch):
    from steptrace.run import sync_rounds

    monkeypatch.setattr(sync_rounds, "_cleared", lambda session, step: None)
    with pytest.raises(AssertionError, match="a version is given once"):
        drive(Lossy({1: 1}))


def test_a_round_that_is_lost_each_time_ends_the_run_where_its_weights_are_pinned():
    rollout = Lossy({2: TRIES + 1})
    with pytest.raises(LostRoundError, match=r"rollouts of step 3 .* weights of step 1") as info:
        drive(rollout)
    assert isinstance(info.value.__cause__, ConnectionError)
    assert "step.dispatch" in info.value.loc.source()
    assert rollout.tried.count(2) == TRIES + 1
    assert all(whole for _, whole in rollout.served)
    assert rollout.served[-1][0] == 1  # what was published last went on serving
    assert 3 in rollout.whole  # and the next round has published


def test_a_round_that_was_given_up_is_published_by_the_dispatch_that_needs_it():
    rollout = Lossy({2: TRIES})
    result = drive(rollout)
    assert facts(result) == facts(drive(HashRollout()))
    assert all(whole for _, whole in rollout.served)
    assert sorted(rollout.tried) == [0, 1, *[2] * (TRIES + 1), 3, 4, 5]  # it may need it once the next one is there
    assert sum("not published" in text for text in result.remarks) == 1


@pytest.mark.parametrize("saves", [1, 3])
def test_a_run_that_ended_by_a_lost_round_goes_on_from_its_newest_checkpoint(tmp_path, saves):
    traced = program(staleness=1, save_every=saves)
    how = {"steps": 5, "pipeline": ASYNC, "out": tmp_path}
    with pytest.raises(LostRoundError):
        steptrace.run(traced, parts(rollout=Lossy({2: TRIES + 1})), **how)
    resumed = steptrace.run(traced, parts(), resume=True, **how)
    assert resumed.params_digest == drive(HashRollout(), traced).params_digest


def test_a_round_that_nobody_reads_ends_nothing_and_is_told():
    steps = 3
    result = drive(Lossy({steps: TRIES}), steps=steps)
    assert facts(result) == facts(drive(HashRollout(), steps=steps))
    (told,) = [text for text in result.remarks if "not published" in text]
    assert told.startswith(f"the weights of step {steps - 1}, version {steps}, were not published")
    assert f"got lost {TRIES} times (ConnectionError: version {steps} got lost)" in told


def freshest(staleness: int) -> Program:
    made = program(staleness=staleness)
    return replace(made, contract=replace(made.contract, weights="freshest"))


def test_where_the_freshest_weights_count_an_older_version_serves_as_far_as_the_staleness_allows():
    rollout = Lossy({2: TRIES, 4: TRIES})
    result = drive(rollout, freshest(2), steps=6)
    assert result.steps == 6
    assert [version for version, _ in rollout.served] == [0, 0, 1, 1, 3, 3]
    assert all(whole for _, whole in rollout.served)
    assert sum("not published" in text for text in result.remarks) == 2


@pytest.mark.parametrize(("staleness", "lost", "step"), [(2, (2, 3), 4), (1, (2,), 3)])
def test_control_more_rounds_lost_than_the_staleness_allows_end_it(staleness, lost, step):
    with pytest.raises(LostRoundError, match=rf"rollouts of step {step} "):
        drive(Lossy(dict.fromkeys(lost, TRIES + 1)), freshest(staleness), steps=6)


def test_control_a_version_that_is_published_ahead_of_its_apply_is_caught(monkeypatch):
    def hasty(self, step, weights, version):
        self._weights[version], self._versions[step] = weights, version
        if self._rollout is not None:
            self._rollout.apply_weights(weights, version)

    monkeypatch.setattr(WeightBoard, "publish", hasty)
    rollout = Lossy({2: TRIES + 1})
    with pytest.raises(Exception) as info:  # noqa: PT011 - whatever it is, it is not the calm run
        drive(rollout)
    assert not isinstance(info.value, LostRoundError) or not all(whole for _, whole in rollout.served)


def test_what_the_rollout_itself_raises_ends_the_run_at_once():
    rollout = Lossy({2: 1}, ValueError)
    with pytest.raises(ValueError, match="version 2 got lost"):
        drive(rollout)
    assert rollout.tried.count(2) == 1


def test_a_round_that_blocks_is_not_done_again():
    rollout = Lossy({2: 1})
    with pytest.raises(ConnectionError, match="version 2 got lost"):
        drive(rollout, pipeline="")
    assert rollout.tried.count(2) == 1
