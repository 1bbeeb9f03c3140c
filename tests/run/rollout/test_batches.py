"""Prompts as padded batches."""

import numpy as np
from rollout_parts import Letters, prompts

from steptrace.lang.records import Prompt
from steptrace.run.rollout.batches import draw_words, encode_prompts, make_batches


def batches(*texts, buckets=(2, 4), rows=2):
    asked = prompts(*texts)
    encoded = encode_prompts(asked, Letters(), longest=4, vocab_size=37)
    return make_batches(encoded, draw_words(asked), buckets=buckets, rows=rows)


def test_each_prompt_takes_the_smallest_bucket_that_holds_it():
    found = [(indices.tolist(), batch.tokens.shape) for indices, batch in batches("abc", "a", "ab", "abcd", "b")]
    assert found == [([1, 2], (2, 2)), ([4], (2, 2)), ([0, 3], (2, 4))]


def test_prompts_stand_left_and_short_batches_are_filled_up():
    ((_, batch),) = batches("abc")
    assert batch.tokens.tolist() == [[2, 3, 4, 0], [0, 0, 0, 0]]
    assert batch.lengths.tolist() == [3, 1]
    assert (batch.tokens.dtype, batch.lengths.dtype, batch.words.dtype) == (np.int32, np.int32, np.uint32)


def test_no_prompts_make_no_batch():
    assert batches() == []


def test_words_depend_on_the_id_and_on_earlier_prompts_of_the_same_id_only():
    first, second, third = draw_words([Prompt("x", "a"), Prompt("y", "b"), Prompt("x", "other text")]).tolist()
    assert draw_words([Prompt("y", "b")]).tolist() == [second]
    assert (first[:2], first[2], third[:2], third[2]) == (third[:2], 0, first[:2], 1)
    assert first[:2] != second[:2]


def test_ids_are_opaque():
    ids = ["a", "a:1", "a:", ":a", "", "\ud800", "é"]
    assert len({tuple(row) for row in draw_words([Prompt(one, "t") for one in ids]).tolist()}) == len(ids)
