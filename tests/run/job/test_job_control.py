from dataclasses import replace

import numpy as np

from steptrace.lang.records import Completion, Group, GroupId, Prompt
from steptrace.run.data.advantages import GroupAdvantages
from steptrace.run.job.control import ShuffledRewards

BLANK = Completion(np.zeros(1, np.int32), np.zeros(1, np.float32), "", True)


def groups(step=3, count=6, samples=4):
    """Groups whose rewards are all different: 0, 1, 2, ... over the step."""
    return [
        Group(
            GroupId(f"p{index}", 0),
            step,
            Prompt(f"p{index}", ""),
            np.zeros(1, np.int32),
            (BLANK,) * samples,
            0,
            rewards=np.arange(index * samples, (index + 1) * samples, dtype=np.float32),
        )
        for index in range(count)
    ]


def seen(step=3, seed=7):
    """The rewards that the estimator is given."""
    given = []

    def spy(groups):
        given.extend(np.asarray(group.rewards) for group in groups)
        return [replace(group, advantages=np.asarray(group.rewards)) for group in groups]

    ShuffledRewards(spy, seed)(groups(step))
    return np.stack(given)


def test_rewards_are_permuted_over_all_samples_of_the_step():
    shuffled = seen()
    assert sorted(shuffled.ravel()) == list(range(24))
    moved_between_groups = [set(row) != set(range(4 * index, 4 * index + 4)) for index, row in enumerate(shuffled)]
    assert all(moved_between_groups)


def test_the_permutation_is_a_function_of_seed_and_step():
    assert np.array_equal(seen(), seen())
    assert not np.array_equal(seen(), seen(step=4))
    assert not np.array_equal(seen(), seen(seed=8))


def test_groups_keep_their_own_rewards_and_get_the_advantages_of_others():
    before = groups()
    after = ShuffledRewards(GroupAdvantages(), 7)(before)
    assert [group.id for group in after] == [group.id for group in before]
    assert all(np.array_equal(new.rewards, old.rewards) for new, old in zip(after, before, strict=True))
    own = GroupAdvantages()(before)
    assert not np.allclose([g.advantages for g in after], [g.advantages for g in own])


def test_control_without_shuffling_the_advantages_are_the_own():
    same = ShuffledRewards(GroupAdvantages(), 7)
    assert same([]) == []
    (only,) = same(groups(count=1, samples=1))
    assert np.array_equal(only.advantages, [0.0])
