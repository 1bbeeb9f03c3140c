import decimal

import jax.numpy as jnp
import numpy as np
import pytest
from made_groups import group

from steptrace.diag import SteptraceError
from steptrace.diag.data import RewardLengthError, RewardNotFiniteError, RewardRaisedError, RewardTypeError
from steptrace.run.data import score


class Labelled(list):
    """Values in order whose index is a label, as a column of a table has."""

    def __getitem__(self, label):
        raise KeyError(label)


GROUPS = [group("a", [5], [[6], [7, 1]]), group("b:0", [5], [[8]])]


def test_rewards_reach_their_own_completions():
    def length(prompt, completions):
        return [len(c) + (10 if prompt.id == "b:0" else 0) for c in completions]

    scored = score(length, GROUPS)
    assert [g.id for g in scored] == [g.id for g in GROUPS]
    assert [g.rewards.tolist() for g in scored] == [[1, 3], [11]]
    assert scored[0].rewards.dtype == np.float32


@pytest.mark.parametrize(
    "given",
    [
        [True, 0],
        (1, 0.0),
        np.array([1, 0]),
        np.array([1.0, 0.0]),
        jnp.array([1.0, 0.0]),
        Labelled([1, 0]),
        [np.float64(1), np.bool_(False)],
        [np.array(1.0), 0],
    ],
)
def test_what_counts_as_a_number(given):
    (scored,) = score(lambda prompt, completions: given, GROUPS[:1])
    assert scored.rewards.tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ([1.0], RewardLengthError, "returned 1 rewards for 2 completions of prompt 'a'"),
        ([1.0, 2.0, 3.0], RewardLengthError, "returned 3 rewards for 2 completions"),
        ([1.0, None], RewardTypeError, "returned None for sample 1 of prompt 'a', not a number"),
        (["1", 0], RewardTypeError, "returned '1' for sample 0"),
        ([decimal.Decimal(1), 0], RewardTypeError, "for sample 0"),
        ([1j, 0], RewardTypeError, "for sample 0"),
        (np.zeros((2, 2)), RewardTypeError, "for sample 0"),
        (None, RewardTypeError, "returned a NoneType on prompt 'a'"),
        ("10", RewardTypeError, "returned a str"),
        (1.0, RewardTypeError, "returned a float"),
        (np.array(1.0), RewardTypeError, "returned a single number on prompt 'a'"),
        (jnp.array(1.0), RewardTypeError, "returned a single number on prompt 'a'"),
        ({0: 1.0, 1: 0.0}, RewardTypeError, "returned a dict"),
        ({"6": 1.0, "7": 0.0}, RewardTypeError, "returned a dict"),
        ({0.5: 1, 0.25: 2}.items(), RewardTypeError, "returned a dict_items"),
        ([0.0, float("nan")], RewardNotFiniteError, "returned nan for sample 1 of prompt 'a'"),
        ([float("-inf"), 0], RewardNotFiniteError, "returned -inf for sample 0"),
        ([1e300, 0], RewardNotFiniteError, "not a finite float32"),
        ([10**400, 0], RewardNotFiniteError, "not a finite float32"),
    ],
)
def test_bad_rewards_name_function_prompt_and_sample(given, error, says):
    def judge(prompt, completions):
        return given

    with pytest.raises(error) as caught:
        score(judge, GROUPS)
    assert says in caught.value.message
    assert "judge`" in caught.value.message
    assert caught.value.loc.file == __file__
    assert caught.value.loc.source() == "def judge(prompt, completions):"


def test_a_reward_that_raises_is_the_cause():
    def judge(prompt, completions):
        return [float("x")]

    with pytest.raises(RewardRaisedError, match="judge` raised ValueError on prompt 'a'") as caught:
        score(judge, GROUPS)
    assert isinstance(caught.value.__cause__, ValueError)
    assert caught.value.loc.source() == 'return [float("x")]'


def test_every_refusal_of_a_reward_says_the_way_out():
    wrong = (
        lambda prompt, completions: [],
        lambda prompt, completions: None,
        lambda prompt, completions: [float("nan")] * len(completions),
        lambda prompt, completions: 1 / 0,
    )
    for reward in wrong:
        with pytest.raises(SteptraceError) as caught:
            score(reward, GROUPS)
        assert caught.value.help, caught.value.code


class Judge:
    def __call__(self, prompt, completions):
        return [None for _ in completions]


@pytest.mark.parametrize("reward", [Judge(), Judge().__call__])
def test_objects_and_methods_are_located(reward):
    with pytest.raises(RewardTypeError, match="Judge") as caught:
        score(reward, GROUPS)
    assert caught.value.loc.source().startswith("def __call__")


def test_a_builtin_has_no_location():
    with pytest.raises(RewardRaisedError) as caught:
        score(max, GROUPS)
    assert caught.value.loc is None


def test_what_is_no_function_at_all():
    with pytest.raises(RewardRaisedError, match="not callable"):
        score(3, GROUPS)
