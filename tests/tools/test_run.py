"""`steptrace run`: flags become the job's configuration, and the summary the last line of output."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import steptrace.run.job
from steptrace.run.job import JobConfig
from steptrace_tools.bench.phases import phase_table
from steptrace_tools.cli import main

SCRIPT = Path(sys.executable).with_name("steptrace")

FOR_SCRIPTS = {
    "program",
    "pipeline",
    "target",
    "steps",
    "seed",
    "accuracy_before",
    "accuracy_after",
    "reward_first",
    "reward_last",
    "params_digest",
    "calls_digest",
    "trained_groups_digest",
    "phase_seconds",
}


@pytest.fixture
def seen(monkeypatch) -> list[JobConfig]:
    configs: list[JobConfig] = []

    def run_job(config: JobConfig) -> dict[str, object]:
        configs.append(config)
        if not config.json:
            print("shown by the job")
        return {"program": config.program, "steps": config.steps}

    monkeypatch.setattr(steptrace.run.job, "run_job", run_job)
    return configs


def test_without_flags_the_job_decides(seen, capsys):
    assert main(["run", "grpo"]) == 0
    assert seen == [JobConfig(program="grpo")]
    assert capsys.readouterr().out == "shown by the job\n"


def test_every_flag_reaches_the_job(seen):
    line = "run --task chain_sum --steps=7 grpo{staleness=1} --seed 3 --out x --resume -p a,b --target inline"
    line += " --control=shuffled-rewards --eval_size=9 --tensorboard --timed --sanitize --mesh=data=2"
    line += " --profile=c.toml --events=e.json"
    assert main(line.split()) == 0
    assert seen == [
        JobConfig(
            program="grpo{staleness=1}",
            task="chain_sum",
            steps=7,
            seed=3,
            out="x",
            resume=True,
            pipeline="a,b",
            target="inline",
            control="shuffled-rewards",
            eval_size=9,
            tensorboard=True,
            profile="c.toml",
            events="e.json",
            timed=True,
            sanitize=True,
            mesh="data=2",
        )
    ]


def test_json_is_the_last_line(seen, capsys):
    assert main(["run", "grpo", "--steps", "2", "--json"]) == 0
    assert seen[0].json
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {"program": "grpo", "steps": 2}


@pytest.mark.parametrize("flag", ["--steps=many", "--seed=1.5", "--shape=2x2"])
def test_a_flag_that_does_not_fit_exits_2_before_the_job(flag: str, seen):
    assert main(["run", "grpo", flag]) == 2
    assert seen == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["grppo"], "there is no built-in program `grppo`"),
        (["grpo", "--target=tpu-pod"], "there is no target `tpu-pod`"),
        (["grpo", "-p", "no-such-pass"], "there is no pass `no-such-pass`"),
        (["grpo", "--steps=0"], "steps=0"),
        (["grpo", "--out=/proc/nothing"], "cannot be written"),
        (["grpo", "--steps=2", "--profile=costs.toml"], "a profile of 2 steps says nothing"),
        (["grpo", "--events=missing/events.json"], "cannot write the events of a run"),
    ],
)
def test_what_cannot_be_run_is_refused_with_a_code(arguments: list[str], sentence: str, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["run", *arguments, "--json"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error[ST")
    assert sentence in err.splitlines()[0]


def test_the_table_of_phases():
    figures = {
        "program": "grpo",
        "task": "chain_sum",
        "steps": 4,
        "phase_ms": {"fwd_bwd": 20.0, "update": 2.5},
        "phase_seconds": {"update": 0.5, "fwd_bwd": 1.5, "free": 0.0},
    }
    assert phase_table(figures).splitlines() == [
        "grpo on chain_sum, 4 steps",
        "",
        "phase    ms a step  s in all  share",
        "fwd_bwd      20.00      1.50  75.0%",
        "update        2.50      0.50  25.0%",
        "all          22.50      2.00",
    ]


@pytest.mark.slow
def test_a_short_run_through_the_console_script(tmp_path: Path):
    line = [SCRIPT, "run", "grpo", "--steps=2", "--eval_size=8", "--out=out", "--json"]
    run = subprocess.run(line, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    summary = json.loads(run.stdout.splitlines()[-1])
    assert summary.keys() >= FOR_SCRIPTS
    assert (summary["program"], summary["steps"], summary["seed"]) == ("grpo", 2, 0)
    again = subprocess.run(line, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (again.returncode, again.stdout) == (1, "")
    assert again.stderr.startswith("error[ST506]")


def test_the_source_of_a_schedule_is_named_as_check_takes_it(seen, capsys):
    assert main(["run", "fast.st", "--against", "my_job:step"]) == 0
    assert seen == [JobConfig(program="fast.st", against="my_job:step")]
    assert main(["run", "fast.st", "--against", "-"]) == 2
    assert "standard input is read once" in capsys.readouterr().err


def test_a_schedule_without_a_known_source_is_refused_before_the_warm_up(tmp_path, capsys):
    schedule = tmp_path / "fast.st"
    assert main(["opt", "grpo{staleness=1}", "-p", "take-ahead", "-o", str(schedule)]) == 0
    schedule.write_text(schedule.read_text().replace("program grpo", "program mine"))
    assert main(["run", str(schedule), "--steps=2", "--out", str(tmp_path / "out")]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error[ST216]: this is a schedule (it runs `dispatch` 1 ahead of its place)")
    assert "--against=module:function" in err
    assert not (tmp_path / "out").exists()
