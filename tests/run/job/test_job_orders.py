"""The end of a job: the step in two orders, and an order that is refused."""

from types import SimpleNamespace

import pytest
from job_cases import job

from steptrace.lang.reference import resolve
from steptrace.run.job import orders, run_job
from steptrace.run.job.orders import refused_order, show_orders
from steptrace.run.job.progress import Show


def test_what_is_refused_says_why():
    said = refused_order(resolve("grpo"))
    assert "`sync_weights`" in said
    assert "policy version" in said


def test_control_an_order_that_is_allowed_is_not_refused(monkeypatch):
    monkeypatch.setattr(orders, "hoist", lambda schedule, op, above: schedule)
    assert refused_order(resolve("grpo")) == ""


class Saved:
    """A trainer of which only its saving and setting back is seen."""

    def __init__(self):
        self.calls = []

    def save_checkpoint(self, directory):
        self.calls.append("save")

    def restore_checkpoint(self, directory):
        self.calls.append("restore")


@pytest.mark.parametrize("differs", [False, True])
def test_orders_that_differ_are_told(capsys, monkeypatch, differs):
    def run(program, bind, *, steps, seed, pipeline, target):
        calls = "b" if differs and pipeline.endswith("boundary") else "a"
        return SimpleNamespace(params_digest="p", calls_digest=calls)

    monkeypatch.setattr(orders, "run", run)
    trainer = Saved()
    with Show(quiet=False) as show:
        show_orders(show, resolve("grpo"), {"trainer": trainer}, seed=0, target="inline")
    said = capsys.readouterr().out
    assert ("NOT THE SAME" in said) is differs
    assert ("bit for bit" in said) is not differs
    assert trainer.calls == ["save", "restore", "restore"]


@pytest.mark.slow
def test_a_job_ends_by_two_orders_that_train_the_same(tmp_path, capsys):
    pytest.importorskip("reasoning_gym")
    run_job(job(tmp_path, orders=True, json=False))
    said = capsys.readouterr().out
    assert "the same parameters and calls, bit for bit" in said
    assert "error[ST" in said.partition("before its weights are out")[2]
