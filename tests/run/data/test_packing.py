from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_groups import group

from steptrace.diag.data import (
    AdvantagesMissingError,
    BadCompletionError,
    GroupCollisionError,
    PackerShapeError,
    SequenceTooLongError,
    UnjoinedKeyError,
)
from steptrace.lang.records import Completion, GroupId
from steptrace.run.data import Packer, join, spans, unpack

LENGTH = 12


def test_two_groups_by_hand():
    a = group("a", [5, 6], [[7, 1], [8, 9, 1]], advantages=[0.5, -0.5])
    b = group("b", [4], [[1]], advantages=[2.0])
    (mb,) = Packer(rows=2, length=8, pad_id=3).pack([a, b], step=7)

    # Lengths 4, 5, 2: the second does not fit beside the first, the third does.
    assert mb.arrays["tokens"].tolist() == [[5, 6, 7, 1, 4, 1, 3, 3], [5, 6, 8, 9, 1, 3, 3, 3]]
    assert mb.arrays["segment_ids"].tolist() == [[1, 1, 1, 1, 2, 2, 0, 0], [1, 1, 1, 1, 1, 0, 0, 0]]
    assert mb.arrays["positions"].tolist() == [[0, 1, 2, 3, 0, 1, 0, 0], [0, 1, 2, 3, 4, 0, 0, 0]]
    assert mb.arrays["loss_mask"].tolist() == [[0, 0, 1, 1, 0, 1, 0, 0], [0, 0, 1, 1, 1, 0, 0, 0]]
    assert mb.arrays["advantages"].tolist() == [[0, 0, 0.5, 0.5, 0, 2, 0, 0], [0, 0, -0.5, -0.5, -0.5, 0, 0, 0]]
    assert (mb.arrays["rollout_logps"] * -64).tolist() == [[0, 0, 7, 1, 0, 1, 0, 0], [0, 0, 8, 9, 1, 0, 0, 0]]
    assert mb.keys == (((a.id, 0), (b.id, 0)), ((a.id, 1),))
    assert (mb.step, mb.index, mb.last) == (7, 0, True)


def test_shapes_and_dtypes():
    (mb,) = Packer(rows=3, length=5).pack([group("a", [2], [[3]], advantages=[1])], step=0)
    assert {name: (array.shape, array.dtype.name) for name, array in mb.arrays.items()} == {
        "tokens": ((3, 5), "int32"),
        "segment_ids": ((3, 5), "int32"),
        "positions": ((3, 5), "int32"),
        "loss_mask": ((3, 5), "float32"),
        "rollout_logps": ((3, 5), "float32"),
        "advantages": ((3, 5), "float32"),
    }


def test_no_groups_give_no_micro_batches():
    assert Packer(rows=2, length=8).pack([], step=0) == []


sequences = st.lists(st.integers(2, 60), min_size=0, max_size=6)


@st.composite
def steps(draw):
    """A step: groups with distinct ids, prompts of 1-5 tokens, completions of 0-6, and a number of rows."""
    count = draw(st.integers(0, 6))
    made = []
    for number in range(count):
        prompt = draw(st.lists(st.integers(2, 60), min_size=1, max_size=5))
        samples = draw(st.lists(sequences, min_size=1, max_size=4))
        # ids with separators in them, and one prompt drawn twice
        name = draw(st.sampled_from([f"p:{number}", f"{number}", f"p:{number}:0"]))
        made.append(
            group(name, prompt, samples, draw=number % 2, advantages=[number + s / 8 for s in range(len(samples))])
        )
    return made, draw(st.integers(1, 4))


def originals(groups):
    return {
        (g.id, s): (np.concatenate([g.prompt_tokens, c.tokens]).tolist(), len(g.prompt_tokens), float(g.advantages[s]))
        for g in groups
        for s, c in enumerate(g.completions)
    }


def violations(groups, packed):
    """What is wrong with a packing, from its arrays alone; an independent reading of the layout."""
    wrong = []
    want, seen = originals(groups), []
    for mb in packed:
        arrays = mb.arrays
        for row, keys in enumerate(mb.keys):
            ids = arrays["segment_ids"][row]
            seen += keys
            if sorted(set(ids.tolist()) - {0}) != list(range(1, len(keys) + 1)):
                wrong.append("segments do not count 1..n")
            if any(
                arrays[name][row][ids == 0].any() for name in ("loss_mask", "positions", "advantages", "rollout_logps")
            ):
                wrong.append("padding is not empty")
            for segment, key in enumerate(keys, start=1):
                at = np.flatnonzero(ids == segment)
                tokens, prompt, advantage = want[key]
                mask = [0.0] * prompt + [1.0] * (len(tokens) - prompt)
                if at.tolist() != list(range(at[0], at[0] + len(at))):
                    wrong.append("a segment is interrupted")
                if arrays["tokens"][row][at].tolist() != tokens:
                    wrong.append("tokens are not the sequence's")
                if arrays["positions"][row][at].tolist() != list(range(len(at))):
                    wrong.append("positions do not restart at 0")
                if arrays["loss_mask"][row][at].tolist() != mask:
                    wrong.append("the mask is not the completion")
                if arrays["advantages"][row][at].tolist() != [m * advantage for m in mask]:
                    wrong.append("advantages are not the sequence's")
    if sorted(seen) != sorted(want):
        wrong.append("not every sequence exactly once")
    if [mb.index for mb in packed] != list(range(len(packed))):
        wrong.append("indices do not count from 0")
    if [mb.last for mb in packed] != [False] * (len(packed) - 1) + [True] * bool(packed):
        wrong.append("last is not on the last")
    return wrong


@given(steps())
def test_packing_keeps_every_sequence(step):
    groups, rows = step
    assert violations(groups, Packer(rows=rows, length=LENGTH).pack(groups, step=0)) == []


def test_control_the_reading_sees_a_wrong_layout():
    groups = [group("a", [5], [[6, 7], [8]], advantages=[1, -1]), group("b", [9], [[2]], advantages=[3])]
    packed = Packer(rows=1, length=LENGTH).pack(groups, step=0)
    assert violations(groups, packed) == []

    def broken(name, row, column, value):
        array = packed[0].arrays[name].copy()
        array[row, column] = value
        return violations(groups, [packed[0].with_array(name, array)])

    assert broken("loss_mask", 0, -1, 1.0) == ["padding is not empty"]
    assert broken("positions", 0, 3, 3) == ["positions do not restart at 0"]
    assert broken("tokens", 0, 4, 7) == ["tokens are not the sequence's"]
    assert "a segment is interrupted" in broken("segment_ids", 0, 4, 1)
    assert violations(groups, []) == ["not every sequence exactly once"]


def same(one, other):
    return [(m.step, m.index, m.last, m.keys, {n: a.tobytes() for n, a in m.arrays.items()}) for m in one] == [
        (m.step, m.index, m.last, m.keys, {n: a.tobytes() for n, a in m.arrays.items()}) for m in other
    ]


@given(steps())
def test_streaming_yields_the_micro_batches_of_pack(step):
    groups, rows = step
    packer = Packer(rows=rows, length=LENGTH)
    stream = packer.stream(0)
    streamed = [mb for g in groups for mb in stream.add(g)]
    streamed += stream.close()
    assert same(streamed, packer.pack(groups, step=0))


def test_control_another_order_of_groups_is_another_packing():
    a = group("a", [5], [[6, 7]], advantages=[1])
    b = group("b", [9], [[2]], advantages=[3])
    packer = Packer(rows=1, length=LENGTH)
    assert not same(packer.pack([a, b], step=0), packer.pack([b, a], step=0))


def test_streaming_completes_micro_batches_early():
    stream = Packer(rows=1, length=4).stream(0)
    assert stream.add(group("a", [5], [[6, 7]], advantages=[1])) == []
    (first,) = stream.add(group("b", [5], [[6, 7]], advantages=[1]))
    assert (first.keys, first.last) == ((((GroupId("a", 0), 0),),), False)


@given(steps(), st.randoms())
@settings(max_examples=50)
def test_join_goes_by_key_whatever_the_order_of_the_values(step, random):
    groups, rows = step
    values = {key: 1.0 + number for number, key in enumerate(originals(groups))}
    shuffled = list(values.items())
    random.shuffle(shuffled)
    for mb in Packer(rows=rows, length=LENGTH).pack(groups, step=0):
        joined = join(mb, dict(shuffled))
        for key, tokens in unpack(mb.with_array("joined", joined), "joined").items():
            prompt = originals(groups)[key][1]
            assert tokens.tolist() == [0.0] * prompt + [values[key]] * (len(tokens) - prompt)
        assert not joined[mb.arrays["segment_ids"] == 0].any()


def test_control_a_join_by_position_gives_rewards_to_other_samples():
    # First fit puts the short third sequence beside the first: order in the micro-batch is not order of the samples.
    groups = [group("a", [5], [[6] * 6, [7] * 6, [8]], advantages=[1, 2, 3])]
    (mb,) = Packer(rows=2, length=9).pack(groups, step=0)
    in_order = [key for key, _, _ in spans(mb)]
    assert in_order != list(originals(groups))
    by_position = join(mb, dict(zip(in_order, [1.0, 2.0, 3.0], strict=True)))
    assert not np.array_equal(by_position, mb.arrays["advantages"])
    assert np.array_equal(join(mb, {(groups[0].id, s): 1.0 + s for s in range(3)}), mb.arrays["advantages"])


def test_join_without_a_value_names_the_sequence():
    g = group("a:1", [5], [[6], [7]], advantages=[1, 2])
    (mb,) = Packer(rows=1, length=8).pack([g], step=4)
    with pytest.raises(UnjoinedKeyError, match=r"sample 1 of group GroupId\(prompt='a:1', draw=0\) .* of step 4"):
        join(mb, {(g.id, 0): 1.0})


def test_too_long_names_group_length_and_setting():
    g = group("a", [5, 6, 7], [[1], [2, 3, 1]], advantages=[1, 2])
    with pytest.raises(SequenceTooLongError) as caught:
        Packer(rows=2, length=5).pack([g], step=0)
    assert str(caught.value) == (
        "error[ST420]: group GroupId(prompt='a', draw=0) is too large to pack: sample 1 has 6 tokens, "
        "3 of them the prompt, and a row holds length=5\n"
        "  help: set the packer's length to 6 or more, or limit the completions"
    )
    assert len(Packer(rows=2, length=6).pack([g], step=0)) == 1


def test_a_refused_group_leaves_the_stream_as_it_was():
    stream = Packer(rows=2, length=5).stream(0)
    with pytest.raises(SequenceTooLongError):
        stream.add(group("a", [5, 6], [[1], [2, 3, 4, 1]], advantages=[1, 2]))
    assert stream.close() == []


def test_one_id_twice_in_a_step_is_refused():
    g = group("a", [5], [[1]], advantages=[1])
    with pytest.raises(GroupCollisionError, match="packed twice in step 3"):
        Packer(rows=2, length=5).pack([g, g], step=3)


@pytest.mark.parametrize("advantages", [None, [1.0], [1.0, float("nan")]])
def test_missing_or_bad_advantages_are_refused(advantages):
    with pytest.raises(AdvantagesMissingError):
        Packer(rows=2, length=5).pack([group("a", [5], [[1], [2]], advantages=advantages)], step=0)


@pytest.mark.parametrize("advantages", [["a", "b"], [[1.0], [1.0, 2.0]], [{}, {}]])
def test_advantages_that_are_no_numbers_are_refused(advantages):
    made = replace(group("a", [5], [[1], [2]]), advantages=advantages)
    with pytest.raises(AdvantagesMissingError, match="no numbers"):
        Packer(rows=2, length=5).pack([made], step=0)


def test_control_advantages_may_be_a_plain_list():
    made = replace(group("a", [5], [[1], [2]]), advantages=[1, 2.5])
    (mb,) = Packer(rows=1, length=8).pack([made], step=0)
    assert mb.arrays["advantages"].tolist() == [[0, 1, 0, 2.5, 0, 0, 0, 0]]


@pytest.mark.parametrize(
    ("tokens", "logps"),
    [
        (np.array([3, 1]), np.array([-0.5])),
        (np.array([3, 1]), np.array([-0.5, -np.inf])),
        (np.array([3.0, 1.0]), np.array([-0.5, -0.5])),
        (np.array([[3, 1]]), np.array([[-0.5, -0.5]])),
    ],
)
def test_a_completion_whose_arrays_do_not_fit_is_refused(tokens, logps):
    g = group("a", [5], [[1]], advantages=[1])
    bad = type(g)(
        **{name: getattr(g, name) for name in g.__slots__} | {"completions": (Completion(tokens, logps, "", True),)}
    )
    with pytest.raises(BadCompletionError, match="group GroupId"):
        Packer(rows=2, length=5).pack([bad], step=0)


def test_a_packer_without_room_is_refused():
    with pytest.raises(PackerShapeError):
        Packer(rows=0, length=8)
