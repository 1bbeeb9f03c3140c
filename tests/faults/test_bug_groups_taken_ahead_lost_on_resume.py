"""Groups taken ahead and not trained when a run was killed are taken again: none is lost, none comes twice."""

from __future__ import annotations

from collections import Counter

import pytest
from matrix_runs import rows_of, wrong

import steptrace
from steptrace.diag.faults import InjectedFaultError
from steptrace.run import manifest
from steptrace.testing.durable_runs import trained_in
from steptrace.testing.faults import Fault, inject
from steptrace.testing.hash_parts import hash_parts

PROGRAM = "grpo{staleness=2, prompts=2, samples=2, save_every=1}"
STEPS, STEP = 5, 2


@pytest.mark.slow
def test_killed_at_every_border_of_the_third_step_with_two_steps_taken_ahead():
    rows = rows_of("""
    both = arms("take-ahead{depth=2}", "program order, two ahead")
    rows = crash_rows(both, only=lambda border: border.arm.pipeline and border.fault.step == 2)
    """)
    assert wrong(rows) == []
    assert len(rows) > 40
    assert {row["other"] for row in rows} == {"program order, two ahead"}


def trained(out, *, pipeline, resume=False, around=()):
    """Train in a folder; how often each group was trained."""
    try:
        options = {"out": out, "steps": STEPS, "resume": resume, "pipeline": pipeline, "around": around}
        steptrace.run(PROGRAM, hash_parts(), **options)
    except InjectedFaultError:
        return None
    return Counter(group for _, groups in trained_in(out) for group in groups)


@pytest.mark.parametrize("op", ["update", "save_checkpoint", "sync_weights", "commit", "log", "free"])
@pytest.mark.parametrize("behind", [False, True])
def test_ended_around_an_op_of_the_third_step(tmp_path, quick_trees, op, behind):
    wanted = trained(tmp_path / "whole", pipeline="")
    ahead = inject(Fault(op, STEP, behind=behind))
    assert trained(tmp_path / "cut", pipeline="take-ahead{depth=2}", around=[ahead]) is None
    assert trained(tmp_path / "cut", pipeline="take-ahead{depth=2}", resume=True) == wanted
    assert {*wanted.values()} == {1}


def test_control_a_cursor_behind_what_was_drawn_loses_the_groups_taken_ahead(tmp_path, quick_trees, monkeypatch):
    real = manifest._facts

    def claims(run, step, behind):
        drawn = {"data": run.draws.state(run.cursor), "last_prompt": run.draws.last(run.cursor)}
        return {**real(run, step, behind), **drawn}

    wanted = trained(tmp_path / "whole", pipeline="")
    monkeypatch.setattr(manifest, "_facts", claims)
    around = [inject(Fault("update", STEP))]
    assert trained(tmp_path / "cut", pipeline="take-ahead{depth=2}", around=around) is None
    assert wanted - trained(tmp_path / "cut", pipeline="take-ahead{depth=2}", resume=True)
