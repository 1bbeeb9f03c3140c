import json

import pytest

from steptrace_tools.bench.resume import KINDS, Job, Moment, differences, moments, outcome, reached

JOB = Job("grpo", "spell_backward", steps=12, seed=0, save_every=3)
SPANS = {"warmup_s": 8.0, "step_s": 0.2, "save_s": 0.1}


def test_moments_are_spread_and_depend_on_the_seed_alone():
    chosen = moments(20, JOB, seed=3, **SPANS)
    assert chosen == moments(20, JOB, seed=3, **SPANS)
    assert chosen != moments(20, JOB, seed=4, **SPANS)
    assert {moment.kind for moment in chosen} == set(KINDS)
    assert {moment.step for moment in chosen if moment.kind == "save"} <= {2, 5, 8, 11}
    assert all(1 <= moment.step < 12 for moment in chosen if moment.kind == "step")
    assert all(0 <= moment.delay_s <= 8.0 for moment in chosen)


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        ("warm-up", "job.json"),
        ("warm-up save", ".saving-warmup"),
        ("save", "checkpoints/.saving-00000002"),
        ("save", "checkpoints/00000002"),
    ],
)
def test_a_moment_is_reached_when_its_file_is_there(tmp_path, kind, place):
    moment = Moment(kind, 2, 0.0)
    assert not reached(moment, tmp_path)
    (tmp_path / place).mkdir(parents=True)
    assert reached(moment, tmp_path)


def test_a_step_is_reached_when_it_is_logged(tmp_path):
    moment = Moment("step", 2, 0.0)
    assert not reached(moment, tmp_path)
    (tmp_path / "metrics.jsonl").write_text("{}\n{")
    assert not reached(moment, tmp_path)
    (tmp_path / "metrics.jsonl").write_text("{}\n{}\n")
    assert reached(moment, tmp_path)


SUMMARY = {
    "params_digest": "a",
    "calls_digest": "b",
    "trained_groups_digest": "c",
    "accuracy_before": 0.5,
    "accuracy_after": 0.5,
}


def test_outcomes_are_compared_to_the_last_group(tmp_path):
    list_ = tmp_path / "trained_groups.jsonl"
    list_.write_text(json.dumps({"step": 0, "groups": [["a", 0]]}) + "\n")
    whole = outcome(SUMMARY, tmp_path)
    assert differences(whole, outcome(SUMMARY, tmp_path)) == []
    assert differences(whole, outcome({**SUMMARY, "params_digest": "z"}, tmp_path)) == ["params_digest"]
    list_.write_text(json.dumps({"step": 0, "groups": [["a", 1]]}) + "\n")
    assert differences(whole, outcome(SUMMARY, tmp_path)) == ["trained_groups"]
