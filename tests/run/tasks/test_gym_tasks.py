import json
import subprocess
import sys
import textwrap

import pytest

from steptrace.diag.data import RewardTypeError
from steptrace.diag.tasks import TaskConfigError, TooFewQuestionsError, UnknownTaskError
from steptrace.lang.parts import PromptSource, Reward
from steptrace.run.data import score
from steptrace.run.tasks import is_held_out, load_task, task_names

pytest.importorskip("reasoning_gym")


def texts(source):
    return [source[index].text for index in range(len(source))]


def python(code):
    """What a fresh interpreter prints, as JSON; ``block(names)`` makes modules fail to import in it."""
    head = """
        import json, sys
        class Blocker:
            def __init__(self, names): self.names = names
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in self.names:
                    raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        def block(*names): sys.meta_path.insert(0, Blocker(names))
        from steptrace.diag import SteptraceError
        from steptrace.run.tasks import load_task
    """
    script = textwrap.dedent(head) + textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def spelling():
    return load_task("spell_backward", size=300, held_out=60)


def test_spell_backward_is_what_it_says(spelling):
    assert isinstance(spelling.prompts, PromptSource)
    assert isinstance(spelling.reward, Reward)
    assert (len(spelling.prompts), len(spelling.held_out)) == (300, 60)
    for index in range(60):
        prompt = spelling.held_out[index]
        word = prompt.text.rpartition(" ")[2]
        assert 3 <= len(word) <= 4
        assert spelling.answer(prompt) == word[::-1]
        assert spelling.exact(prompt, word[::-1])
        assert not spelling.exact(prompt, word[::-1] + "x")


def test_reward_gives_partial_credit_and_exact_does_not(spelling):
    prompt = next(spelling.prompts[i] for i in range(300) if len(set(spelling.prompts[i].text[-4:])) == 4)
    answer = spelling.answer(prompt)
    almost = answer[:-1] + "?"
    (full, part, none) = spelling.reward(prompt, [answer, almost, ""])
    assert full == 1.0
    assert 0.5 < part < 1.0
    assert none == 0.0
    assert not spelling.exact(prompt, almost)


def test_the_two_sides_share_no_question_under_any_seeds():
    tasks = [load_task("spell_backward", size=300, held_out=60, seed=seed) for seed in (0, 1, 2)]
    train = {text for task in tasks for text in texts(task.prompts)}
    held_out = {text for task in tasks for text in texts(task.held_out)}
    assert not train & held_out
    assert len(train) > 700  # seeds give other questions, neighbours too
    for task in tasks:
        for source in (task.prompts, task.held_out):
            assert len(set(texts(source))) == len(source)


def test_control_a_plain_split_by_seed_shares_questions():
    factory = pytest.importorskip("reasoning_gym.factory")
    one, other = (
        factory.create_dataset("spell_backward", size=300, seed=seed, min_word_len=3, max_word_len=4) for seed in (1, 2)
    )
    assert {item["question"] for item in one} & {item["question"] for item in other}


def test_a_task_is_the_same_each_time():
    one, other = (load_task("spell_backward", size=40, held_out=10, seed=3) for _ in range(2))
    assert texts(one.prompts) == texts(other.prompts)
    assert texts(one.held_out) == texts(other.held_out)


def test_a_small_dataset_gives_what_it_has():
    task = load_task("chain_sum", size=2000, held_out=200)
    train, held_out = texts(task.prompts), texts(task.held_out)
    assert 190 <= len(train) + len(held_out) <= 200  # 10 x 10 x 2 sums exist
    assert 20 <= len(held_out) <= 60
    assert not set(train) & set(held_out)
    half = load_task("chain_sum", held_out=200, held_out_share=0.5)
    assert 70 <= len(half.held_out) <= 130
    prompt = task.prompts[0]
    a, operator, b = prompt.text.split()[-4:-1]
    assert task.answer(prompt) == str(int(a) + int(b) if operator == "+" else int(a) - int(b))


def test_the_hash_holds_out_about_its_share():
    held = sum(is_held_out(f"question {number}", 0.2) for number in range(5000))
    assert abs(held - 1000) < 150  # 5 standard deviations


def test_settings_win_over_the_preset():
    task = load_task("spell_backward", size=10, held_out=2, min_word_len=5, max_word_len=5)
    assert {len(text.rpartition(" ")[2]) for text in texts(task.prompts)} == {5}


@pytest.mark.parametrize("name", ["gcd", "letter_counting", "countdown", "propositional_logic", "family_relationships"])
def test_other_datasets_by_name(name):
    assert name in task_names()
    task = load_task(name, size=20, held_out=4)
    prompt = task.held_out[0]
    tokenizer = task.tokenizer()
    assert tokenizer.decode(tokenizer.encode(prompt.text)) == prompt.text
    if task.answer(prompt) is not None:
        assert task.exact(prompt, task.answer(prompt))
    assert not task.exact(prompt, "no such answer")


def test_a_scorer_that_cannot_parse_an_answer_gives_nothing():
    task = load_task("prime_factorization", size=10, held_out=2)
    prompt = task.prompts[0]
    with pytest.raises(ValueError, match="invalid literal"):
        task.dataset.score_answer("abc", prompt.meta["entry"])
    assert task.reward(prompt, ["abc", task.answer(prompt)]) == [0.0, 1.0]


def test_unknown_names_get_near_ones():
    with pytest.raises(UnknownTaskError) as caught:
        load_task("spell_backwards")
    assert "did you mean spell_backward" in caught.value.help


@pytest.mark.parametrize("config", [{"words": 4}, {"min_word_len": 5, "max_word_len": 4}])
def test_bad_settings_list_the_good_ones(config):
    with pytest.raises(TaskConfigError) as caught:
        load_task("spell_backward", **config)
    assert caught.value.help == "its settings: min_word_len, max_word_len, data_file"


@pytest.mark.parametrize("split", [{"size": 0}, {"held_out": 0}, {"held_out_share": 1.0}])
def test_a_split_with_an_empty_side(split):
    with pytest.raises(TaskConfigError, match="empty side"):
        load_task("spell_backward", **split)


def test_too_few_questions_to_split():
    with pytest.raises(TooFewQuestionsError, match="none of them is a held-out one"):
        load_task("chain_sum", min_terms=1, max_terms=1, held_out_share=0.001)


def test_without_the_package():
    code, way_out = python("""
        block("reasoning_gym")
        try: load_task("spell_backward")
        except SteptraceError as error: print(json.dumps([error.code, error.help]))
    """)
    assert code == "ST450"
    assert way_out == "in the folder of steptrace: make setup, or python -m pip install -e '.[tasks]'"


def test_without_the_solver_only_logic_puzzles_refuse():
    trained, code, way_out = python("""
        block("pycosat")
        task = load_task("spell_backward", size=5, held_out=2)
        try: load_task("zebra_puzzles", size=5, held_out=2)
        except SteptraceError as error: print(json.dumps([len(task.prompts), error.code, error.help]))
    """)
    assert (trained, code) == (5, "ST454")
    assert "pip install pycosat" in way_out


def test_control_without_the_stand_in_nothing_imports():
    assert (
        python("""
        block("pycosat")
        try: import reasoning_gym
        except ImportError as error: print(json.dumps(error.name))
    """)
        == "pycosat"
    )


def test_the_task_is_a_reward_part(spelling):
    from dataclasses import replace

    from steptrace.lang.records import Completion, Group, GroupId

    prompt = spelling.prompts[0]
    completion = Completion(None, None, spelling.answer(prompt), True)
    group = Group(GroupId(prompt.id, 0), 0, prompt, None, (completion,), 0)
    assert score(spelling.reward, [group])[0].rewards.tolist() == [1.0]
    broken = replace(spelling, dataset=type("Broken", (), {"score_answer": lambda self, text, entry: "x"})())
    assert broken.reward(prompt, ["a"]) == [0.0]
    with pytest.raises(RewardTypeError):
        score(lambda prompt, completions: [None], [group])
