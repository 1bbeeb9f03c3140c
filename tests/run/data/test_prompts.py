import pytest

from steptrace.diag.data import BadPromptLineError, DuplicatePromptError, EmptyPromptsError, UnreadablePromptsError
from steptrace.lang.parts import PromptSource
from steptrace.lang.records import Prompt
from steptrace.run.data import JsonlPrompts, ListPrompts


@pytest.fixture
def write(tmp_path):
    def to(text):
        path = tmp_path / "prompts.jsonl"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return to


def test_prompts_of_a_file(write):
    source = JsonlPrompts(write('{"prompt": "one", "answer": 1}\n\n{"prompt": "two\\u2028", "answer": 2}\n'))
    assert isinstance(source, PromptSource)
    assert list(source) == [
        Prompt("1", "one", {"prompt": "one", "answer": 1}),
        Prompt("3", "two\u2028", {"prompt": "two\u2028", "answer": 2}),
    ]


def test_keys_are_the_users(write):
    source = JsonlPrompts(write('{"q": "one", "n": "a:1"}\r\n{"q": "two", "n": 7}'), text_key="q", id_key="n")
    assert [(p.id, p.text) for p in source] == [("a:1", "one"), ("7", "two")]


def test_other_line_separators_stay_inside_a_text(write):
    assert [p.text for p in JsonlPrompts(write('{"prompt": "a\u2028b"}\n'))] == ["a\u2028b"]


@pytest.mark.parametrize(
    ("line", "says", "column"),
    [
        ('{"prompt": "b"', "this line is not JSON", 15),
        ("[1]", "this line is a list, not a JSON object", 0),
        ('{"text": "b"}', "this line has no key 'prompt' (its keys: 'text')", 0),
        ("{}", "this line has no key 'prompt' (its keys: none)", 0),
        ('{"prompt": 3}', "'prompt' holds an int, and a prompt is a text", 0),
        ('{"prompt": null}', "'prompt' holds a NoneType, and a prompt is a text", 0),
    ],
)
def test_a_bad_line_is_pointed_at(write, line, says, column):
    path = write('{"prompt": "a"}\n\n' + line + "\n")
    with pytest.raises(BadPromptLineError) as caught:
        JsonlPrompts(path)
    assert says in caught.value.message
    assert (caught.value.loc.file, caught.value.loc.line, caught.value.loc.column) == (str(path), 3, column)
    assert line in str(caught.value)


@pytest.mark.parametrize("value", ["null", "1.5", "true", "[]"])
def test_ids_are_texts_or_integers(write, value):
    with pytest.raises(BadPromptLineError, match="an id is a text or an integer"):
        JsonlPrompts(write(f'{{"prompt": "a", "id": {value}}}'), id_key="id")


def test_an_id_given_twice_points_at_both(write):
    path = write('{"prompt": "a", "id": "x"}\n{"prompt": "b", "id": "x"}\n')
    with pytest.raises(DuplicatePromptError, match="'x'") as caught:
        JsonlPrompts(path, id_key="id")
    assert (caught.value.loc.line, caught.value.notes[0].loc.line) == (2, 1)


def test_unreadable_files(write, tmp_path):
    with pytest.raises(UnreadablePromptsError, match="No such file"):
        JsonlPrompts(tmp_path / "missing.jsonl")
    with pytest.raises(UnreadablePromptsError, match="Is a directory"):
        JsonlPrompts(tmp_path)
    with pytest.raises(UnreadablePromptsError, match="not UTF-8") as caught:
        JsonlPrompts(write(b'{"prompt": "a"}\n{"prompt": "\xff"}\n'))
    assert caught.value.loc.line == 2


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_empty_files(write, text):
    with pytest.raises(EmptyPromptsError, match=r"no prompt in .*prompts.jsonl"):
        JsonlPrompts(write(text))


def test_lists():
    source = ListPrompts(["one", Prompt("b:1", "two")])
    assert [(p.id, p.text) for p in source] == [("0", "one"), ("b:1", "two")]
    with pytest.raises(EmptyPromptsError):
        ListPrompts([])
    with pytest.raises(DuplicatePromptError, match="prompts 0 and 1 both have the id 'a'"):
        ListPrompts([Prompt("a", "one"), Prompt("a", "two")])
