import json
from dataclasses import replace

import pytest
from job_cases import RECIPE, job

from steptrace.diag.checkpoint import NoCheckpointError, OtherSeedError, OutInUseError, UnwritableOutError
from steptrace.diag.job import BrokenJobFolderError, JobOptionError, OtherJobError, UnknownControlError
from steptrace.run.job.folder import held_folder


def held(config):
    return held_folder(config, config.recipe)


def opened(config):
    with held(config) as found:
        return found


def as_if_saved(folder):
    """A folder that looks as after the first checkpoint."""
    place = folder / "checkpoints" / "00000001"
    place.mkdir(parents=True)
    (place / "manifest.json").write_text("{}")


def test_settings_are_kept_in_a_new_folder(tmp_path):
    folder, found = opened(job(tmp_path / "a" / "b"))
    settings = json.loads((folder / "job.json").read_text())
    assert (folder, found) == (tmp_path / "a" / "b", "")
    assert (settings["task"], settings["seed"], settings["recipe"]["dim"]) == ("spell_backward", 5, 16)


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file" / "below", tmp_path / "file", "/proc/nothing"):
        with pytest.raises(UnwritableOutError):
            opened(job(place))


def test_a_folder_with_a_run_is_resumed_or_refused(tmp_path):
    opened(job(tmp_path))
    with pytest.raises(OutInUseError, match="holds a run"):
        opened(job(tmp_path))
    as_if_saved(tmp_path)
    assert opened(job(tmp_path, resume=True))[1] == f"resuming from {tmp_path / 'checkpoints' / '00000001'}"


def test_what_a_run_without_a_checkpoint_left_is_removed_and_its_warm_up_kept(tmp_path):
    opened(job(tmp_path))
    for name in ("metrics.jsonl", "trained_groups.jsonl"):
        (tmp_path / name).write_text("old")
    assert opened(job(tmp_path, resume=True))[1].endswith("starting at step 0 with a new warm-up")
    assert not (tmp_path / "metrics.jsonl").exists()
    assert not (tmp_path / "trained_groups.jsonl").exists()
    (tmp_path / "warmup").mkdir()
    assert opened(job(tmp_path, resume=True))[1].endswith("with the warm-up that is kept there")
    assert (tmp_path / "warmup").exists()


def test_control_what_a_run_with_a_checkpoint_wrote_stays(tmp_path):
    opened(job(tmp_path))
    (tmp_path / "metrics.jsonl").write_text("old")
    as_if_saved(tmp_path)
    opened(job(tmp_path, resume=True))
    assert (tmp_path / "metrics.jsonl").read_text() == "old"


@pytest.mark.parametrize(
    ("options", "note"),
    [
        ({"task": "chain_sum"}, "task: 'spell_backward' there, 'chain_sum' here"),
        ({"control": "shuffled-rewards"}, "control: '' there, 'shuffled-rewards' here"),
        ({"eval_size": 21}, "eval_size: 20 there, 21 here"),
        ({"recipe": replace(RECIPE, dim=32)}, "recipe.dim: 16 there, 32 here"),
    ],
)
def test_a_run_with_other_settings_is_not_resumed(tmp_path, options, note):
    opened(job(tmp_path))
    with pytest.raises(OtherJobError) as caught:
        opened(job(tmp_path, resume=True, **options))
    assert [line.text for line in caught.value.notes] == [note]


def test_a_run_with_another_seed_is_not_resumed(tmp_path):
    opened(job(tmp_path))
    with pytest.raises(OtherSeedError, match="seed 5, not 6"):
        opened(job(tmp_path, resume=True, seed=6))


def test_more_steps_and_another_pipeline_are_the_same_job(tmp_path):
    opened(job(tmp_path))
    opened(job(tmp_path, resume=True, steps=900, pipeline="some-pass", timed=True))


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_broken_settings_are_refused(tmp_path, text):
    opened(job(tmp_path))
    (tmp_path / "job.json").write_text(text)
    with pytest.raises(BrokenJobFolderError):
        opened(job(tmp_path, resume=True))


def test_jobs_without_a_folder_get_one_each_below_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, second = (opened(job(None))[0] for _ in range(2))
    assert [str(first), str(second)] == ["runs/grpo-spell_backward-seed5", "runs/grpo-spell_backward-seed5-2"]
    assert opened(job(None, resume=True))[0] == second
    assert str(opened(job(None, program="my.module:step"))[0]) == "runs/my.module-step-spell_backward-seed5"
    assert str(opened(job(None, control="shuffled-rewards"))[0]).endswith("seed5-shuffled-rewards")


@pytest.mark.parametrize("options", [{"steps": 0}, {"eval_size": 0}])
def test_options_out_of_range(options):
    with pytest.raises(JobOptionError):
        job(None, **options)


def test_a_control_that_is_not_there():
    with pytest.raises(UnknownControlError, match="no control 'no-rewards'"):
        job(None, control="no-rewards")


def test_a_folder_is_held_while_its_job_runs(tmp_path):
    with held(job(tmp_path)):
        (tmp_path / "metrics.jsonl").write_text("of the one that runs")
        with pytest.raises(OutInUseError, match="another process is running in"):
            opened(job(tmp_path, resume=True))
        assert (tmp_path / "metrics.jsonl").exists()


def test_control_a_folder_is_let_go_of_with_its_job(tmp_path):
    with pytest.raises(KeyError), held(job(tmp_path)):
        raise KeyError
    assert opened(job(tmp_path, resume=True))[1].startswith("no checkpoint")


FOREIGN = (
    "metrics.jsonl",
    "trained_groups.jsonl",
    "summary.json",
    "curves.png",
    "tokenizer.json",
    "tensorboard/events",
    "warmup/weights",
    "checkpoints/00000001/manifest.json",
)


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("name", FOREIGN)
def test_files_that_are_no_jobs_are_neither_removed_nor_adopted(tmp_path, name, resume):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("mine")
    with pytest.raises(OutInUseError, match=f"has {name.partition('/')[0]}, and no job.json"):
        opened(job(tmp_path, resume=resume))
    assert (tmp_path / name).read_text() == "mine"
    assert not (tmp_path / "job.json").exists()


def test_control_other_files_may_stand_beside_a_job(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    opened(job(tmp_path))
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_job_that_starts_again_says_which_program_it_runs(tmp_path):
    opened(job(tmp_path))
    opened(job(tmp_path, resume=True, program="rloo"))
    assert json.loads((tmp_path / "job.json").read_text())["program"] == "rloo"
    as_if_saved(tmp_path)
    opened(job(tmp_path, resume=True, program="grpo"))
    assert json.loads((tmp_path / "job.json").read_text())["program"] == "rloo"


def test_there_is_no_run_to_resume_where_none_has_begun(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    for out in ("nowhere", "empty", None):
        with pytest.raises(NoCheckpointError, match=r"there is no run in .* to resume") as caught:
            opened(job(out, resume=True))
        assert "without --resume" in caught.value.help
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_a_run_that_is_at_its_end_is_said_to_be(tmp_path):
    opened(job(tmp_path, steps=7))
    (tmp_path / "checkpoints" / "00000006-end").mkdir(parents=True)
    assert "nothing is left of 7 steps" in opened(job(tmp_path, steps=7, resume=True))[1]
    assert opened(job(tmp_path, steps=9, resume=True))[1].endswith("checkpoints/00000006-end")
