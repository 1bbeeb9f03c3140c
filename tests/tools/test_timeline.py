"""`steptrace timeline`: the trace has what the run had, row by row; pages and text of planned and measured runs."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import pairwise

import pytest

from steptrace.cost import parse_costs, read_costs
from steptrace.lang.reference import resolve
from steptrace.lower import lower
from steptrace.simulate import simulate
from steptrace.timeline import recording_of, write_events
from steptrace_tools.cli import main

COSTS = '[ops.fwd_bwd]\nissue = "1 s"\nwork = "10 s"\n[ops.update]\nwork = "4 s"\n[ops.other]\nissue = "0 s"\n'


def test_lanes_and_devices_are_rows_and_work_does_not_overlap(tmp_path):
    (tmp_path / "costs.toml").write_text(COSTS)
    out = tmp_path / "trace.json"
    asked = [f"--costs={tmp_path / 'costs.toml'}", "--micro-batches=2", "--steps=3", "-p", "pipelined-boundary"]
    assert main(["timeline", "grpo{staleness=1}", *asked, "-o", str(out)]) == 0
    events = json.loads(out.read_text())["traceEvents"]
    rows = {event["args"]["name"]: event["tid"] for event in events if event["name"] == "thread_name"}
    assert {"host", "packer", "trainer"} <= rows.keys()
    work = sorted((e for e in events if e["ph"] == "X" and e["tid"] == rows["trainer"]), key=lambda e: e["ts"])
    assert sum(event["dur"] for event in work) == 3 * (2 * 10 + 4) * 1e6
    assert all(a["ts"] + a["dur"] <= b["ts"] for a, b in pairwise(work))
    assert all("grpo.py:" in event["args"]["line"] for event in work)


def test_without_costs_it_is_refused(capsys):
    assert main(["timeline", "grpo"]) == 2
    assert "needs costs" in capsys.readouterr().err


@pytest.fixture
def costs(tmp_path) -> str:
    (tmp_path / "costs.toml").write_text(COSTS)
    return f"--costs={tmp_path / 'costs.toml'}"


def test_a_page_with_what_was_measured_below_what_was_planned(costs, tmp_path):
    """The measured run is another planned one here, named so: what matters is that it comes from its file."""
    source = resolve("grpo{staleness=1}")
    plan = lower(source)
    run = simulate(plan, read_costs(tmp_path / "costs.toml").durations(), micro_batches=4, steps=6)
    write_events(replace(recording_of(run, plan), origin="measured"), tmp_path / "events.json")
    page, trace = tmp_path / "page.html", tmp_path / "trace.json"
    asked = [costs, "--micro-batches=2", f"--measured={tmp_path / 'events.json'}", f"--html={page}", "-o", str(trace)]
    assert main(["timeline", "grpo{staleness=1}", *asked]) == 0
    data = json.loads(re.search(r'id="data">(.*?)</script>', page.read_text(), re.DOTALL)[1])
    assert [(panel["origin"], len(panel["begins"])) for panel in data] == [("planned", 5), ("measured", 6)]
    assert {event["pid"] for event in json.loads(trace.read_text())["traceEvents"]} == {1, 2}


def test_a_measured_run_alone_needs_no_costs(tmp_path, capsys):
    plan = lower(resolve("grpo"))
    run = simulate(plan, parse_costs(COSTS).durations(), micro_batches=2, steps=4)
    write_events(replace(recording_of(run, plan), origin="measured"), tmp_path / "events.json")
    assert main(["timeline", "grpo", f"--measured={tmp_path / 'events.json'}", "--ascii", "--width=80"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("measured: grpo, steps 2 to 3")
    assert "fwd_bwd.1@2" in said


def test_a_file_without_events_is_refused(tmp_path, capsys):
    (tmp_path / "other.json").write_text("{}")
    assert main(["timeline", "grpo", f"--measured={tmp_path / 'other.json'}"]) == 1
    assert "error[ST640]" in capsys.readouterr().err


def test_a_page_that_cannot_be_written_is_refused(costs, tmp_path, capsys):
    assert main(["timeline", "grpo", costs, "--micro-batches=2", f"--html={tmp_path / 'missing' / 'page.html'}"]) == 1
    assert "error[ST600]" in capsys.readouterr().err
