import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steptrace.diag.tasks import TokenizerFileError, UnknownTokenError
from steptrace.lang.parts import Tokenizer
from steptrace.run.tasks import ByteTokenizer, TaskTokenizer

QUESTIONS = [f"Spell this word backward (example: sun -> nus): {word}" for word in ("hay", "both", "Sus", "this")]
ANSWERS = ["yah", "htob", "suS", "siht"]


def tokenizer():
    return TaskTokenizer.build(QUESTIONS, ANSWERS)


def test_boilerplate_is_one_token_and_the_rest_is_letters():
    made = tokenizer()
    pieces = dict(enumerate(made.characters + made.words, start=19))
    spelled = [pieces.get(token, token) for token in made.encode(QUESTIONS[0])]
    opening = "Spell this word backward (example: sun -> nus):"
    assert spelled == [opening, " ", "h", "a", "y", made.answer_id]
    assert [pieces.get(token, token) for token in made.answer_tokens("yah")] == ["y", "a", "h", made.stop_id]
    assert made.vocab_size == 19 + len(made.characters) + len(made.words)


def test_words_that_recur_after_the_beginning_are_one_token_each():
    made = TaskTokenizer.build([f"Add up: {n} + {m} = what" for n, m in ((1, 2), (3, 4), (5, 6))], ["3"])
    pieces = dict(enumerate(made.characters + made.words, start=19))
    spelled = [pieces.get(token, token) for token in made.encode("Add up: 3 + 9 = what")]
    assert spelled[:-1] == ["Add up:", " ", "3", " +", " ", *spelled[5:7], " =", " what"]
    assert made.words == (" +", " =", " what", "Add up:")


def test_another_beginning_is_spelled():
    made = tokenizer()
    text = "Say this word backward: hay"
    assert len(made.encode(text)) == len(text) + 1
    assert made.decode(made.encode(text)) == text


def test_no_question_is_one_token():
    made = TaskTokenizer.build(["the same question", "the same question"], [])
    assert made.words == (" question", "the same")


def test_control_a_share_above_one_makes_letters_of_all():
    made = TaskTokenizer.build(QUESTIONS, ANSWERS, share=1.1)
    assert made.words == ()
    assert len(made.encode(QUESTIONS[0])) == len(QUESTIONS[0]) + 1


def test_answers_are_spelled_even_where_they_are_a_word_of_the_boilerplate():
    made = tokenizer()
    assert len(made.answer_tokens("Spell this")) == 11


@pytest.mark.parametrize("make", [tokenizer, ByteTokenizer])
def test_they_are_tokenizer_parts(make):
    made = make()
    assert isinstance(made, Tokenizer)
    assert len({made.pad_id, made.stop_id, made.answer_id}) == 3
    assert made.encode("") == [made.answer_id]
    assert made.decode([made.pad_id, made.answer_id, made.stop_id]) == ""


@given(st.text())
def test_every_text_encodes_and_comes_back(text):
    for made in (tokenizer(), ByteTokenizer()):
        for tokens in (made.encode(text), made.answer_tokens(text)):
            assert made.decode(tokens) == text
            assert all(0 <= token < made.vocab_size for token in tokens)
        assert made.encode(text)[-1] == made.answer_id
        assert made.answer_tokens(text)[-1] == made.stop_id


@given(st.lists(st.integers(0, tokenizer().vocab_size - 1)))
def test_every_sampled_sequence_decodes(tokens):
    assert isinstance(tokenizer().decode(tokens), str)


def test_unknown_characters_are_half_bytes():
    made = tokenizer()
    assert made.encode("é") == [3 + 0xC, 3 + 0x3, 3 + 0xA, 3 + 0x9, made.answer_id]
    assert made.decode([3 + 0xC]) == "\ufffd"
    assert made.decode([3 + 0x4, *made.encode("a")]) == "\ufffda"


def test_the_order_of_the_texts_does_not_matter():
    made, other = tokenizer(), TaskTokenizer.build(QUESTIONS[::-1], ANSWERS[::-1])
    assert (made.characters, made.words) == (other.characters, other.words)


@pytest.mark.parametrize("make", [tokenizer, ByteTokenizer])
@pytest.mark.parametrize("token", [-1, 9999])
def test_ids_outside_the_vocabulary_are_refused(make, token):
    with pytest.raises(UnknownTokenError, match="outside the vocabulary"):
        make().decode([token])


def test_saved_and_loaded(tmp_path):
    path = tmp_path / "tokenizer.json"
    made = tokenizer()
    made.save(path)
    again = TaskTokenizer.load(path)
    assert again.vocab_size == made.vocab_size
    assert [again.encode(text) for text in QUESTIONS] == [made.encode(text) for text in QUESTIONS]
    with pytest.raises(TokenizerFileError, match="not a bytes tokenizer"):
        ByteTokenizer.load(path)
    ByteTokenizer().save(path)
    assert ByteTokenizer.load(path).encode("a") == [100, 2]


GOOD = {"format": 1, "tokenizer": "task", "characters": ["a"], "words": ["ab"]}


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        json.dumps(GOOD | {"format": 2}),
        json.dumps(GOOD | {"words": None}),
        json.dumps(GOOD | {"words": [1]}),
        json.dumps(GOOD | {"characters": ["ab"]}),
    ],
)
def test_broken_files_are_refused(tmp_path, text):
    path = tmp_path / "tokenizer.json"
    path.write_text(text)
    with pytest.raises(TokenizerFileError):
        TaskTokenizer.load(path)
    with pytest.raises(TokenizerFileError, match="cannot read"):
        TaskTokenizer.load(tmp_path / "missing.json")


def test_control_the_good_file_loads(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(GOOD))
    assert TaskTokenizer.load(path).words == ("ab",)
