"""`steptrace timeline`: the trace has what the run had, row by row."""

from __future__ import annotations

import json
from itertools import pairwise

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
