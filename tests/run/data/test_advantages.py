import statistics
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_groups import group

from steptrace.diag.data import RewardsMissingError, SingleSampleError
from steptrace.run.data import GlobalNormalized, GroupAdvantages, LeaveOneOut


def scored(rewards, name="a"):
    return group(name, [5], [[6]] * len(rewards), rewards=rewards)


def advantages(estimate, *rewards):
    groups = [scored(given, str(number)) for number, given in enumerate(rewards)]
    given = estimate(groups)
    assert [g.id for g in given] == [g.id for g in groups]
    assert all(g.advantages.dtype == np.float32 for g in given)
    return [g.advantages.tolist() for g in given]


def test_grpo_by_hand():
    # mean 2, population std sqrt(2/3)
    (got,) = advantages(GroupAdvantages(eps=0.0), [1, 2, 3])
    assert got == pytest.approx([-(1.5**0.5), 0, 1.5**0.5], rel=1e-6)


def test_grpo_eps_is_added_to_the_deviation():
    (got,) = advantages(GroupAdvantages(eps=0.5), [0, 1])
    assert got == pytest.approx([-0.5, 0.5], rel=1e-6)


def test_dr_grpo_only_centres():
    assert advantages(GroupAdvantages(std=False), [1, 2, 6], [5]) == [[-2, -1, 3], [0]]


def test_leave_one_out_by_hand():
    # baselines: (2+6)/2, (1+6)/2, (1+2)/2
    assert advantages(LeaveOneOut(), [1, 2, 6]) == [[-3, -1.5, 4.5]]


def test_global_by_hand():
    # all of [0, 2], [4]: mean 2, population std sqrt(8/3)
    unit = (3 / 2) ** 0.5
    got = advantages(GlobalNormalized(eps=0.0), [0, 2], [4])
    assert got[0] == pytest.approx([-unit, 0], rel=1e-6)
    assert got[1] == pytest.approx([unit], rel=1e-6)
    assert GlobalNormalized()([]) == []


rewards = st.lists(st.floats(-8, 8, width=16), min_size=2, max_size=8)


@given(st.lists(rewards, min_size=1, max_size=4))
def test_against_a_plain_reference(step):
    grpo = advantages(GroupAdvantages(), *step)
    rloo = advantages(LeaveOneOut(), *step)
    for one, got, left_out in zip(step, grpo, rloo, strict=True):
        mean, std = statistics.fmean(one), statistics.pstdev(one)
        assert got == pytest.approx([(r - mean) / (std + 1e-6) for r in one], rel=1e-5, abs=1e-6)
        others = [statistics.fmean(one[:i] + one[i + 1 :]) for i in range(len(one))]
        assert left_out == pytest.approx([r - b for r, b in zip(one, others, strict=True)], rel=1e-5, abs=1e-6)


@given(rewards, rewards)
def test_group_scope_sees_its_own_group_only(one, other):
    for estimate in (GroupAdvantages(), GroupAdvantages(std=False), LeaveOneOut()):
        assert estimate.scope == "group"
        assert advantages(estimate, one, other)[0] == advantages(estimate, one)[0]


def test_control_step_scope_sees_the_others():
    assert GlobalNormalized().scope == "step"
    assert advantages(GlobalNormalized(), [0, 1], [5, 9])[0] != advantages(GlobalNormalized(), [0, 1])[0]


@given(st.floats(-1e6, 1e6, width=32), st.integers(2, 9))
def test_equal_rewards_give_exactly_zero(reward, samples):
    for estimate in (
        GroupAdvantages(),
        GroupAdvantages(eps=0.0),
        GroupAdvantages(std=False),
        LeaveOneOut(),
        GlobalNormalized(),
    ):
        assert advantages(estimate, [reward] * samples) == [[0.0] * samples]


def test_equal_rewards_in_double_precision_give_exactly_zero_too():
    # An own reward op may leave float64, whose mean can round away from the common value.
    equal = replace(scored([0, 0, 0]), rewards=np.full(3, 0.1))
    for estimate in (GroupAdvantages(eps=0.0), GroupAdvantages(std=False), LeaveOneOut(), GlobalNormalized(eps=0.0)):
        assert estimate([equal])[0].advantages.tolist() == [0.0] * 3


def test_control_the_plain_formula_is_not_zero_on_equal_rewards():
    plain = np.full(3, 0.1)
    assert plain.min() == plain.max()
    assert ((plain - plain.mean()) / plain.std()).tolist() == [-1.0] * 3  # the mean rounds up


def test_a_single_sample():
    assert advantages(GroupAdvantages(), [3.0]) == [[0.0]]
    with pytest.raises(SingleSampleError, match="has 1 sample"):
        advantages(LeaveOneOut(), [3.0])


@pytest.mark.parametrize("given", [None, [1.0], [1.0, float("nan")]])
@pytest.mark.parametrize("estimate", [GroupAdvantages(), LeaveOneOut(), GlobalNormalized()])
def test_groups_without_proper_rewards_are_refused(estimate, given):
    with pytest.raises(RewardsMissingError):
        estimate([group("a", [5], [[6], [7]], rewards=given)])
