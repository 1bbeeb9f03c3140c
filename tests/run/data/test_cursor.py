import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steptrace.diag.data import DataStateError, DuplicatePromptError, EmptyPromptsError
from steptrace.lang.records import Prompt
from steptrace.run.data import DataCursor, Draws, ListPrompts
from steptrace.run.data.cursor import permutation

FIVE = ListPrompts([Prompt(f"p:{i}", str(i)) for i in range(5)])


def all_draws(draws, counts):
    cursor, drawn = DataCursor(), []
    for count in counts:
        some, cursor = draws.draw(cursor, count)
        drawn.append([name for name, _ in some])
    return drawn, cursor


@given(st.integers(0, 2**70), st.integers(0, 50), st.integers(1, 300))
def test_orders_are_permutations(seed, epoch, size):
    assert sorted(permutation(size, seed, epoch).tolist()) == list(range(size))


def test_the_order_is_pinned_to_the_hash():
    def mix(word):
        word = (word + 0x9E3779B97F4A7C15) % 2**64
        word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        word = (word ^ (word >> 27)) * 0x94D049BB133111EB % 2**64
        return word ^ (word >> 31)

    assert mix(0) == 0xE220A8397B1DCDAF  # first output of the published generator at seed 0
    key = mix((mix(7) + 2) % 2**64)
    hashes = [mix((key + 0x9E3779B97F4A7C15 * i) % 2**64) for i in range(50)]
    assert permutation(50, 7, 2).tolist() == sorted(range(50), key=hashes.__getitem__)


def test_seeds_and_epochs_shuffle_differently_and_about_evenly():
    orders = {tuple(permutation(6, seed, epoch)) for seed in range(20) for epoch in range(20)}
    assert len(orders) > 250  # 400 draws of 720 orders: 307 distinct on average
    first = np.bincount([permutation(6, seed, 0)[0] for seed in range(3000)], minlength=6)
    assert abs(first - 500).max() < 100  # 5 standard deviations


@given(st.lists(st.integers(0, 7), max_size=8), st.integers(0, 9))
def test_draws_do_not_depend_on_how_they_are_cut(counts, seed):
    cut, cursor = all_draws(Draws(FIVE, seed=seed), counts)
    whole, end = all_draws(Draws(FIVE, seed=seed), [sum(counts)])
    assert [name for part in cut for name in part] == whole[0]
    assert cursor == end == DataCursor(sum(counts))


def test_every_group_id_is_new_and_every_prompt_comes_once_an_epoch():
    (drawn,), _ = all_draws(Draws(FIVE, seed=3), [20])
    assert len(set(drawn)) == 20
    for epoch in range(4):
        part = drawn[5 * epoch : 5 * epoch + 5]
        assert {name.draw for name in part} == {epoch}
        assert {name.prompt for name in part} == {f"p:{i}" for i in range(5)}


def test_control_epochs_are_not_one_order_repeated():
    (drawn,), _ = all_draws(Draws(FIVE, seed=3), [20])
    assert len({tuple(name.prompt for name in drawn[5 * e : 5 * e + 5]) for e in range(4)}) > 1
    (plain,), _ = all_draws(Draws(FIVE, seed=3, shuffle=False), [10])
    assert [name.prompt for name in plain] == [f"p:{i}" for i in range(5)] * 2


def test_resuming_seeks_and_touches_no_other_prompt():
    asked = []

    class Watched:
        def __len__(self):
            return 5

        def __getitem__(self, index):
            asked.append(index)
            return FIVE[index]

    straight, _ = all_draws(Draws(FIVE, seed=1), [250_003, 3])
    resumed = Draws(Watched(), seed=1)
    state = json.loads(json.dumps(Draws(FIVE, seed=1).state(DataCursor(250_003))))
    some, cursor = resumed.draw(resumed.restore(state), 3)
    assert [name for name, _ in some] == straight[1]
    assert cursor == DataCursor(250_006)
    assert len(asked) == 3


def test_the_data_ends():
    draws = Draws(FIVE, epochs=2)
    drawn, cursor = all_draws(draws, [4, 4, 4, 4])
    assert [len(part) for part in drawn] == [4, 4, 2, 0]
    assert cursor == DataCursor(10)
    assert draws.ended(cursor)
    assert not draws.ended(DataCursor(9))
    assert not Draws(FIVE).ended(DataCursor(10**9))


@pytest.mark.parametrize(
    "other",
    [Draws(ListPrompts(["a"]), seed=0), Draws(FIVE, seed=1), Draws(FIVE, seed=0, shuffle=False)],
)
def test_a_cursor_of_other_data_is_refused(other):
    with pytest.raises(DataStateError, match="were saved with"):
        other.restore(Draws(FIVE, seed=0).state(DataCursor(3)))
    assert Draws(FIVE, seed=0).restore(Draws(FIVE, seed=0).state(DataCursor(3))) == DataCursor(3)


@pytest.mark.parametrize("state", [{}, {"position": -1}, {"position": "3"}])
def test_a_broken_state_is_refused(state):
    with pytest.raises(DataStateError, match="position"):
        Draws(FIVE).restore(state)


def test_bad_sources():
    with pytest.raises(EmptyPromptsError, match="list is empty"):
        Draws([])
    with pytest.raises(DuplicatePromptError, match="both have the id 'a'"):
        Draws([Prompt("a", "1"), Prompt("a", "2")]).draw(DataCursor(), 2)
