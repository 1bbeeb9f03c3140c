import pytest

from steptrace.lang.records import Prompt
from steptrace.run.job.reward import ScoreAndExact

PROMPT = Prompt("p", "spell it")


class Judge:
    """Scores an answer by the number it is."""

    def reward(self, prompt, completions):
        assert prompt is PROMPT
        return [float(text) for text in completions]


@pytest.mark.parametrize(("share", "rewards"), [(0.0, [1.0, 0.8, 0.0]), (0.5, [1.0, 0.4, 0.0]), (1.0, [1.0, 0.0, 0.0])])
def test_a_share_of_the_reward_is_for_right_answers_alone(share, rewards):
    assert ScoreAndExact(Judge(), share)(PROMPT, ["1.0", "0.8", "0"]) == pytest.approx(rewards)
