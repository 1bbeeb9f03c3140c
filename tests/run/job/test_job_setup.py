from dataclasses import replace

import numpy as np
import pytest
from job_cases import RECIPE

from steptrace.diag.job import NoAnswersError, NothingFitsError
from steptrace.diag.tasks import TooFewQuestionsError, UnknownTaskError
from steptrace.lang.records import GroupId
from steptrace.run.job.setup import load_setup, seed_of
from steptrace.run.job.warmup import answered
from steptrace.run.tasks import Task, gym

pytest.importorskip("reasoning_gym")


@pytest.fixture(scope="module")
def setup():
    return load_setup("spell_backward", RECIPE, 20)


def prompts_of(source):
    return [source[index] for index in range(len(source))]


def test_shapes_follow_from_the_task(setup):
    sides = prompts_of(setup.train) + prompts_of(setup.held_out)
    assert setup.bucket == max(len(setup.tokenizer.encode(prompt.text)) for prompt in sides)
    longest = max(len(setup.tokenizer.answer_tokens(prompt.meta["answer"])) for prompt in sides)
    assert setup.max_new_tokens == longest
    assert setup.packer.length == setup.recipe.sequences_per_row * (setup.bucket + longest)
    assert setup.packer.rows == round(RECIPE.micro_batch_tokens / setup.packer.length)
    assert setup.model(0).max_length == setup.bucket + longest


def test_no_question_is_trained_on_and_held_out(setup):
    trained, held = ({prompt.text for prompt in prompts_of(side)} for side in (setup.train, setup.held_out))
    assert (len(trained), len(held), len(trained & held)) == (200, 20, 0)


def test_questions_that_are_too_long_are_left_out_and_counted():
    short = load_setup("spell_backward", replace(RECIPE, longest_answer=4), 20)
    assert short.max_new_tokens == 4
    assert 0 < short.left_out == 220 - len(short.train) - len(short.held_out)


def test_nothing_fits():
    with pytest.raises(NothingFitsError, match="at most 3 tokens"):
        load_setup("spell_backward", replace(RECIPE, longest_prompt=3), 20)


def test_a_task_without_answers(monkeypatch):
    monkeypatch.setattr(Task, "answer", lambda *_: None)
    with pytest.raises(NoAnswersError, match="spell_backward"):
        load_setup("spell_backward", RECIPE, 20)


def test_a_task_that_is_not_there():
    with pytest.raises(UnknownTaskError):
        load_setup("spell_backwards", RECIPE, 20)


def test_a_task_with_an_empty_side(monkeypatch):
    monkeypatch.setattr(gym, "is_held_out", lambda *_: False)
    with pytest.raises(TooFewQuestionsError):
        load_setup("spell_backward", RECIPE, 20)


def test_the_warm_up_trains_on_the_answers_alone(setup):
    prompt = setup.train[0]
    (micro_batch,) = answered(setup, [(GroupId(prompt.id, 0), prompt)], 0)
    trained = micro_batch.arrays["tokens"][micro_batch.arrays["loss_mask"] > 0]
    assert setup.tokenizer.decode(trained.tolist()) == prompt.meta["answer"]
    assert trained[-1] == setup.tokenizer.stop_id


def test_seeds_of_two_uses_differ():
    assert seed_of("warm-up", 1) == seed_of("warm-up", 1)
    assert len({seed_of(use, seed) for use in ("warm-up", "model") for seed in (0, 1)}) == 4


def test_the_same_seed_makes_the_same_model(setup):
    first, second, other = (setup.model(seed) for seed in (3, 3, 4))
    assert np.array_equal(first.head_kernel[...], second.head_kernel[...])
    assert not np.array_equal(first.head_kernel[...], other.head_kernel[...])
