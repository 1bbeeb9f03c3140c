import json
import shutil

import pytest
from job_cases import PROGRAM, job

from steptrace.diag.checkpoint import OtherProgramError
from steptrace.diag.job import BrokenJobFolderError
from steptrace.diag.training import DamagedStateError
from steptrace.run.job import run_job
from steptrace.run.job.trackers import JsonLines, read_records

pytest.importorskip("reasoning_gym")
pytestmark = pytest.mark.slow

EQUAL = (
    "steps",
    "params_digest",
    "calls_digest",
    "trained_groups_digest",
    "accuracy_before",
    "accuracy_after",
    "reward_first",
    "reward_last",
)
"""What a run that was interrupted must have in common with one that was not."""


def compared(summary):
    return {name: summary[name] for name in EQUAL}


def trained(out):
    return [json.loads(line) for line in (out / "trained_groups.jsonl").read_text().splitlines()]


class Killed(BaseException):
    """What stands for a kill: nobody catches it."""


def killed(config, monkeypatch, step):
    """Run a job that dies while step ``step`` is logged."""

    def die(tracker, at, metrics):
        if at == step:
            raise Killed
        log(tracker, at, metrics)

    log = JsonLines.log
    with monkeypatch.context() as patch:
        patch.setattr(JsonLines, "log", die)
        with pytest.raises(Killed):
            run_job(config)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of five steps that nobody interrupts: its folder and its summary."""
    out = tmp_path_factory.mktemp("whole")
    return out, run_job(job(out))


def test_the_summary_is_complete_and_kept(whole):
    out, summary = whole
    assert json.loads((out / "summary.json").read_text()) == json.loads(json.dumps(summary))
    assert (summary["program"], summary["task"], summary["pipeline"], summary["target"]) == (
        PROGRAM,
        "spell_backward",
        "",
        "inline",
    )
    assert (summary["steps"], summary["seed"], summary["control"], summary["out"]) == (5, 5, "", str(out))
    assert all(len(summary[name]) == 64 for name in ("params_digest", "calls_digest", "trained_groups_digest"))
    assert all(0 <= summary[name] <= 1 for name in ("accuracy_before", "accuracy_after", "reward_first"))
    assert {"dispatch", "ref_logps", "fwd_bwd", "update", "save_checkpoint"} <= summary["phase_ms"].keys()
    assert (out / "curves.png").exists() or (out / "curves.html").exists()


def test_the_folder_holds_metrics_groups_and_checkpoints(whole):
    out, _ = whole
    records = read_records(out / "metrics.jsonl")
    assert [record["step"] for record in records] == [0, 1, 2, 3, 4]
    assert {"reward", "kl", "entropy", "tokens_per_s", "grad_norm"} <= records[0].keys()
    assert [(line["step"], len(line["groups"])) for line in trained(out)] == [(step, 4) for step in range(5)]
    assert sorted(place.name for place in (out / "checkpoints").iterdir()) == [".lock", "00000003", "00000004-end"]


def test_no_leaf_compiles_again_after_the_first_step(whole):
    compiles = whole[1]["compiles"]
    assert compiles["again"] == []
    assert compiles["at_end"]["trainer.fwd_bwd"] == 1
    assert compiles["at_end"]["rollout.generate"] == 1
    assert compiles["at_end"]["reference.logps"] == 1


@pytest.mark.parametrize("step", [0, 2])
def test_an_interrupted_run_ends_as_one_that_was_not(whole, tmp_path, monkeypatch, step):
    killed(job(tmp_path), monkeypatch, step)
    resumed = run_job(job(tmp_path, resume=True))
    assert resumed["warmup"]["restored"]
    assert resumed["first_step"] == step
    assert compared(resumed) == compared(whole[1])
    assert trained(tmp_path) == trained(whole[0])
    assert [record["step"] for record in read_records(tmp_path / "metrics.jsonl")] == [0, 1, 2, 3, 4]


def test_a_run_that_dies_in_its_warm_up_makes_it_again(whole, tmp_path, monkeypatch):
    from steptrace.run.job import warmup

    def die(*_):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(warmup, "_keep", die)
        with pytest.raises(Killed):
            run_job(job(tmp_path))
    resumed = run_job(job(tmp_path, resume=True))
    assert not resumed["warmup"]["restored"]
    assert compared(resumed) == compared(whole[1])


def test_control_another_seed_ends_elsewhere(whole, tmp_path):
    other = run_job(job(tmp_path, seed=6))
    assert all(other[name] != whole[1][name] for name in ("params_digest", "calls_digest", "trained_groups_digest"))


def test_the_control_trains_on_other_advantages(whole, tmp_path):
    shuffled = run_job(job(tmp_path, control="shuffled-rewards"))
    own = run_job(job(tmp_path / "own"))
    assert shuffled["trained_groups_digest"] == own["trained_groups_digest"]
    assert shuffled["accuracy_before"] == own["accuracy_before"]
    assert shuffled["params_digest"] != own["params_digest"]


@pytest.fixture
def finished(whole, tmp_path):
    """A copy of the finished run."""
    return shutil.copytree(whole[0], tmp_path / "copy")


def test_a_finished_run_is_taken_further_and_a_resumed_end_repeats_nothing(whole, finished):
    again = run_job(job(finished, resume=True))
    assert compared(again) == compared(whole[1])
    further = run_job(job(finished, resume=True, steps=6))
    assert (further["steps"], len(trained(finished))) == (6, 6)


def test_another_program_does_not_resume(finished):
    with pytest.raises(OtherProgramError, match="another program"):
        run_job(job(finished, resume=True, program="grpo{prompts=8, samples=4, save_every=2}"))


def test_a_broken_warm_up_is_refused(finished):
    facts = finished / "warmup" / "facts.json"
    whole = facts.read_text()
    facts.write_text(whole[:10])
    with pytest.raises(BrokenJobFolderError, match=r"facts\.json"):
        run_job(job(finished, resume=True))
    facts.write_text(whole)
    (finished / "warmup" / "trainer.json").unlink()
    with pytest.raises(DamagedStateError):
        run_job(job(finished, resume=True))


def test_it_is_quiet_where_standard_output_belongs_to_the_caller(tmp_path, capsys):
    run_job(job(tmp_path / "a", steps=1))
    assert capsys.readouterr().out == ""
    run_job(job(tmp_path / "b", steps=1, json=False))
    shown = capsys.readouterr().out
    assert "held-out accuracy" in shown
    assert "metrics.jsonl" in shown.replace("\n", "")


def test_a_program_without_a_reference_has_no_penalty_to_it(tmp_path):
    summary = run_job(job(tmp_path, program="dr_grpo{prompts=4, samples=4, save_every=2}", steps=2))
    records = read_records(tmp_path / "metrics.jsonl")
    assert summary["steps"] == 2
    assert all("kl" not in record for record in records)
    assert summary["compiles"]["at_end"]["reference.logps"] == 0


def test_a_run_resumed_within_a_step_compiles_nothing_again(tmp_path):
    run_job(job(tmp_path, steps=2))
    shutil.rmtree(tmp_path / "checkpoints" / "00000001-end")
    summary = run_job(job(tmp_path, steps=5, resume=True))
    assert (summary["first_step"], summary["compiles"]["again"]) == (2, [])
    assert summary["compiles"]["after_first_step"]["trainer.fwd_bwd"] == 1
