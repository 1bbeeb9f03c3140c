"""`steptrace bench recorder`: that it runs, and that both ways train the same."""

from __future__ import annotations

import json

import pytest

from steptrace_tools.cli import main


@pytest.mark.slow
def test_it_runs_and_both_ways_train_the_same(capsys: pytest.CaptureFixture[str]):
    assert main(["bench", "recorder", "--json", "--steps=4", "--rounds=1"]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["equal"] is True
    assert figures["watch_us"] > 0
    assert figures["recorded_over_plain"] == pytest.approx(figures["recorded_step_ms"] / figures["plain_step_ms"])
