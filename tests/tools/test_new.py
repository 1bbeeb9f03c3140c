"""`steptrace new`: the job that it writes is small, public, and learns; it overwrites nothing."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import steptrace
from steptrace_tools.cli import main

FILES = {"job.py", "prompts.jsonl", "README.md"}


@pytest.fixture
def job(tmp_path: Path, capsys) -> Path:
    assert main(["new", str(tmp_path / "job")]) == 0
    assert capsys.readouterr().out.endswith(f"start with: python {tmp_path / 'job' / 'job.py'}\n")
    return tmp_path / "job"


def test_it_writes_the_files_of_a_job(job: Path):
    assert {path.name for path in job.iterdir()} == FILES
    rows = [json.loads(line) for line in (job / "prompts.jsonl").read_text().splitlines()]
    assert all(row.keys() == {"prompt", "answer"} for row in rows)


def test_the_job_has_at_most_80_lines(job: Path):
    lines = (job / "job.py").read_text().splitlines()
    assert len(lines) <= 80
    assert max(map(len, lines)) <= 120


def test_the_job_uses_public_names_only(job: Path):
    assert private_names((job / "job.py").read_text()) == []


def private_names(source: str) -> list[str]:
    """Names of steptrace in ``source`` that are not in its ``__all__``."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(ast.Name("steptrace"), name) if name not in steptrace.__all__:
                found.append(name)
            case ast.ImportFrom(str() as module, names) if module.startswith("steptrace."):
                found.append(module)
            case ast.Import(names):
                found += [alias.name for alias in names if alias.name.startswith("steptrace.")]
    return found


def test_control_names_that_are_not_public_are_seen():
    source = "import steptrace.run.job\nfrom steptrace.ir import Op\nsteptrace._HOMES\nsteptrace.trace"
    assert sorted(private_names(source)) == ["_HOMES", "steptrace.ir", "steptrace.run.job"]


def test_nothing_is_overwritten(job: Path, capsys):
    (job / "job.py").write_text("mine")
    (job / "README.md").unlink()
    assert main(["new", str(job)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"error[ST601]: `{job}` already has job.py, prompts.jsonl\n")
    assert (job / "job.py").read_text() == "mine"
    assert not (job / "README.md").exists()


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["new", str(tmp_path / "file" / "job")]) == 1
    assert capsys.readouterr().err.startswith("error[ST600]: cannot write to `")


@pytest.mark.slow
def test_the_job_runs_as_it_is_and_learns(job: Path):
    run = subprocess.run([sys.executable, job / "job.py"], capture_output=True, text=True, check=False, cwd=job)
    assert run.returncode == 0, run.stderr
    rewards = [float(value) for value in re.findall(r"^step \d+: reward (\d\.\d\d)$", run.stdout, re.MULTILINE)]
    assert rewards[-1] > rewards[0] + 0.3
    again = subprocess.run([sys.executable, job / "job.py"], capture_output=True, text=True, check=False, cwd=job)
    assert again.stdout == run.stdout, "started from the checkpoint that the first run made"


MORE = """
import pickle
from pathlib import Path
from job import *

@steptrace.program(staleness=1)
def saving_step(step, prompts=8, samples=4):
    step.dispatch(prompts=prompts, samples=samples)
    for mb in step.micro_batches(step.pack(step.advantages(step.reward(step.take())))):
        step.fwd_bwd(mb)
    step.update()
{save}
    step.sync_weights()
    step.commit()
    step.log(step.get_metrics())

class SavingTrainer(MyTrainer):
{methods}

def made(out, steps, **options):
    graph, params = nnx.split(MyModel(nnx.Rngs(0)))
    parts = {{"trainer": SavingTrainer(graph, params, optax.adam(1e-2)), "rollout": MyRollout(graph),
             "reward": my_reward, "tokenizer": Letters(), "prompts": steptrace.JsonlPrompts(HERE / "prompts.jsonl")}}
    return steptrace.run(saving_step, parts, steps=steps, out=out, **options).params_digest

whole = made("whole", 16)
made("run", 11, pipeline="pipelined-boundary")
assert made("run", 16, resume=True, pipeline="defer-metrics") == whole
print("the same")
"""


@pytest.mark.slow
def test_what_its_readme_says_of_checkpoints_and_pipelines_holds(job: Path):
    save, methods = re.findall(r"(?:^      .*\n)+", (job / "README.md").read_text(), re.MULTILINE)
    text = MORE.format(save=save.replace("      ", "    ", 1).replace("\n      ", "\n    "), methods=methods)
    (job / "more.py").write_text(text)
    run = subprocess.run([sys.executable, "more.py"], capture_output=True, text=True, check=False, cwd=job)
    assert run.stdout == "the same\n", run.stderr


def changed(job: Path, old: str, new: str, name: str = "job.py") -> subprocess.CompletedProcess[str]:
    text = (job / name).read_text()
    assert old in text
    (job / name).write_text(text.replace(old, new).replace("steps=60", "steps=1"))
    return subprocess.run([sys.executable, "job.py"], capture_output=True, text=True, check=False, cwd=job)


@pytest.mark.slow
def test_what_is_wrong_with_the_job_is_told_without_a_stack(job: Path):
    assert changed(job, "steps=60", "steps=1").returncode == 0
    run = changed(job, "nnx.Embed(28, 64, rngs=rngs), nnx.Linear(128", "nnx.Embed(28, 8, rngs=rngs), nnx.Linear(16")
    assert run.returncode == 1
    assert run.stderr.startswith("error[ST503]: ")
    assert "Traceback" not in run.stderr
    assert "embed.embedding: float32[28, 64] there, float32[28, 8] in the model" in run.stderr
    assert re.search(r"help: remove .*start", run.stderr)


@pytest.mark.slow
def test_a_prompt_that_it_cannot_take_is_named(job: Path):
    run = changed(job, '"ab"', '"A!"', "prompts.jsonl")
    assert run.stderr.startswith("error[ST307]: a token that the tokenizer made of prompt '1' is -1")
    assert "the prompt: 'A!'" in run.stderr
    run = changed(job, '"A!"', '"abc"', "prompts.jsonl")
    assert "this rollout takes prompts of two letters" in run.stderr
