"""Which weights generate: exactly those that the contract names, and how many versions are held for it."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from fakes import HashRollout, HashTrainer, NewestRollout, parts

import steptrace
from steptrace.diag.binding import PartResultError
from steptrace.diag.running import UnpublishedWeightsError
from steptrace.programs.grpo import grpo
from steptrace.programs.grpo_epochs import grpo_epochs
from steptrace.run.board import WeightBoard

SMALL = {"prompts": 3, "samples": 2}


@pytest.mark.parametrize(
    ("staleness", "asked"),
    [(0, [0, 1, 2, 3, 4, 5]), (1, [0, 0, 1, 2, 3, 4]), (2, [0, 0, 0, 1, 2, 3]), (9, [0, 0, 0, 0, 0, 0])],
)
def test_step_k_generates_with_what_step_k_less_1_less_staleness_published(staleness, asked):
    bound = parts()
    steptrace.run(grpo.trace(**SMALL, staleness=staleness), bound, steps=6)
    assert bound["rollout"].asked == asked


@pytest.mark.parametrize("staleness", [1, 2])
def test_control_the_newest_weights_instead_train_other_parameters(staleness):
    program = grpo.trace(**SMALL, staleness=staleness)
    pinned = steptrace.run(program, parts(), steps=6)
    newest = steptrace.run(program, parts(rollout=NewestRollout()), steps=6)
    assert pinned.params_digest != newest.params_digest
    assert pinned.trained_groups_digest == newest.trained_groups_digest


def test_control_without_staleness_the_newest_is_the_pinned():
    program = grpo.trace(**SMALL)
    pinned = steptrace.run(program, parts(), steps=6)
    newest = steptrace.run(program, parts(rollout=NewestRollout()), steps=6)
    assert pinned.params_digest == newest.params_digest


@pytest.mark.parametrize("staleness", [0, 1, 2, 3])
def test_no_more_versions_are_held_than_staleness_asks_for(staleness):
    bound = parts()
    steptrace.run(grpo.trace(**SMALL, staleness=staleness), bound, steps=9)
    assert bound["rollout"].most_held == staleness + 2


def test_several_updates_a_step_count_as_versions_and_the_last_is_published():
    bound = parts()
    steptrace.run(grpo_epochs.trace(prompts=4, samples=2, epochs=2, mini_batches=2, staleness=1), bound, steps=4)
    assert bound["rollout"].asked == [0, 0, 4, 8]


def test_the_record_says_which_version_sampled_the_step():
    result = steptrace.run(grpo.trace(**SMALL, staleness=1), parts(), steps=4)
    assert [record["rollout_version"] for record in result.records] == [0.0, 0.0, 1.0, 2.0]


def test_freshest_generates_with_the_last_sync():
    @steptrace.program(weights="freshest", staleness=3)
    def seldom(step):
        step.dispatch(prompts=3, samples=2)
        for mb in step.micro_batches(step.pack(step.advantages(step.reward(step.take())))):
            step.fwd_bwd(mb)
        step.update()
        with step.every(3):
            step.sync_weights()
        step.commit()

    bound = parts()
    steptrace.run(seldom, bound, steps=8)
    assert bound["rollout"].asked == [0, 0, 0, 3, 3, 3, 6, 6]
    assert bound["rollout"].most_held == 2


class Skipping(HashTrainer):
    """A trainer that skips the update of some steps."""

    def __init__(self, skipped: set[int]) -> None:
        super().__init__()
        self.skipped = skipped
        self.updates = 0

    def update(self) -> None:
        if self.updates in self.skipped:
            self.grads = np.zeros(4)
        else:
            super().update()
        self.updates += 1


@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_a_skipped_update_publishes_its_version_again_and_is_not_sent_twice(staleness):
    """`HashRollout` refuses a version that it holds, and to drop one that it does not hold."""
    rollout = HashRollout()
    trainer = Skipping({1, 2, 4})
    steptrace.run(grpo.trace(**SMALL, staleness=staleness), parts(trainer=trainer, rollout=rollout), steps=8)
    published = [0, 1, 1, 1, 2, 2, 3, 4, 5]  # initial, then by step
    assert rollout.asked == [published[max(step - staleness, 0)] for step in range(8)]
    assert rollout.most_held <= staleness + 2
    assert rollout.given == [0, 1, 2, 3, 4, 5]
    assert rollout.held == {}


def test_steps_behind_a_skipped_one_go_on_as_if_it_had_been_absent():
    """With the same groups the parameters would be the same: the sum of what was not skipped."""
    skipping = Skipping({0, 1, 2, 3})
    steptrace.run(grpo.trace(**SMALL), parts(trainer=skipping), steps=4)
    assert skipping.applied == 0
    assert skipping.params["w"].tolist() == HashTrainer().params["w"].tolist()


class Stuck(HashTrainer):
    """A trainer whose version does not move though its parameters do."""

    def weights(self):
        return {"w": self.params["w"].copy()}, 0


def test_a_trainer_whose_version_does_not_move_is_found_out_at_the_first_sync():
    with pytest.raises(
        PartResultError, match="gave other weights the version 0 that the initial sync has published"
    ) as info:
        steptrace.run(grpo.trace(**SMALL), parts(trainer=Stuck()), steps=4)
    assert "sync_weights" in info.value.loc.source()


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (None, "nothing"),
        ({"w": np.zeros(4)}, "a dict"),
        (({"w": np.zeros(4)}, 1.5), "1.5 as the version"),
        (({"w": np.zeros(4)}, None), "None as the version"),
        (({"w": [np.array([1.0, None])]}, 0), "an array of objects"),
        (({"w": np.zeros(4), "activation": jax.nn.relu}, 0), "a function among arrays"),
    ],
)
def test_weights_that_are_none_are_refused(made, words):
    class Wrong(HashTrainer):
        def weights(self):
            return made

    with pytest.raises(PartResultError, match=words):
        steptrace.run(grpo.trace(**SMALL), parts(trainer=Wrong()), steps=1)


def test_the_same_parts_run_again():
    bound = parts()
    steptrace.run(grpo.trace(**SMALL, staleness=1), bound, steps=3)
    assert bound["rollout"].held == {}
    again = steptrace.run(grpo.trace(**SMALL, staleness=1), bound, steps=2)
    assert again.steps == 2
    assert bound["rollout"].asked == [0, 0, 1, 3, 3]


def test_parts_of_a_run_that_failed_hold_no_weights_of_it():
    class Failing(HashTrainer):
        def get_metrics(self):
            raise RuntimeError("gone")

    rollout = HashRollout()
    with pytest.raises(RuntimeError, match="gone"):
        steptrace.run(grpo.trace(**SMALL), parts(trainer=Failing(), rollout=rollout), steps=2)
    assert rollout.held == {}


def test_a_rollout_that_cannot_drop_is_reported_behind_the_error_of_the_run():
    class Stubborn(HashRollout):
        def drop_weights(self, version):
            raise OSError("cannot drop")

    with pytest.raises(OSError, match="cannot drop") as info:
        steptrace.run(grpo.trace(**SMALL, staleness=2), parts(rollout=Stubborn()), steps=1)
    assert info.value.__notes__ == ["in WeightBoard.clear, after the run"]


def board() -> tuple[WeightBoard, HashRollout]:
    rollout = HashRollout()
    return WeightBoard(rollout), rollout


def weights(value: float) -> dict[str, np.ndarray]:
    return {"w": np.full(2, value)}


def test_a_version_is_dropped_with_its_last_alias():
    made, rollout = board()
    made.publish(-1, weights(0.0), 0)
    made.publish(0, weights(0.0), 0)
    made.publish(1, weights(1.0), 1)
    made.forget_before(0)
    assert made.held() == {0: 0, 1: 1}
    assert sorted(rollout.held) == [0, 1]
    made.forget_before(1)
    assert made.held() == {1: 1}
    assert sorted(rollout.held) == [1]


def test_a_version_that_was_dropped_can_be_published_again():
    made, rollout = board()
    made.publish(0, weights(0.0), 7)
    made.publish(1, weights(1.0), 8)
    made.forget_before(1)
    made.publish(2, weights(0.0), 7)
    assert made.version(2) == 7
    assert sorted(rollout.held) == [7, 8]


def test_an_alias_has_the_same_bits():
    made, _ = board()
    made.publish(0, weights(0.0), 0)
    made.publish(1, weights(0.0), 0)
    with pytest.raises(PartResultError):
        made.publish(2, weights(-0.0), 0)
    assert made.held() == {0: 0, 1: 0}


def test_a_rollout_that_refuses_weights_leaves_them_unpublished():
    class Full(HashRollout):
        def apply_weights(self, weights, version):
            raise MemoryError("no room")

    made = WeightBoard(Full())
    with pytest.raises(MemoryError):
        made.publish(0, weights(0.0), 0)
    assert made.held() == {}
    with pytest.raises(UnpublishedWeightsError):
        made.version(0)


def test_weights_nobody_published():
    made, _ = board()
    made.publish(3, weights(0.0), 2)
    with pytest.raises(UnpublishedWeightsError, match="no sync of step 2") as info:
        made.version(2)
    assert "steps with one: 3" in info.value.message
