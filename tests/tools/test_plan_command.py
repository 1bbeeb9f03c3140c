"""`steptrace plan`: what it says of a schedule, tables over settings, and what it refuses."""

from __future__ import annotations

import json
import time
from xml.etree import ElementTree

import pytest

from steptrace.diag.command import OutputNotWritableError
from steptrace_tools.cli import main
from steptrace_tools.output import check_writable, told_if_slow
from steptrace_tools.plan_sweep import settings_of

PROGRAM = "grpo{staleness=1,save_every=1000000}"

COSTS = """\
[ops.fwd_bwd]
issue = "1 s"
work = "10 s"
[ops.update]
work = "4 s"
[ops.log]
issue = "3 s"
[ops.other]
issue = "0 s"
[sizes]
params = "2 GB"
optimizer = "4 GB"
batch = "1 GB"
micro_batch = "100 MB"
"""


@pytest.fixture
def costs(tmp_path) -> str:
    path = tmp_path / "costs.toml"
    path.write_text(COSTS)
    return f"--costs={path}"


def told(capsys, *arguments: str) -> dict:
    assert main(["plan", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_figures_of_a_schedule(capsys, costs):
    plain = told(capsys, PROGRAM, costs, "--micro-batches=3")
    assert plain["period_s"] == 1 + 30 + 4 + 3
    assert plain["bound_s"] == 34
    assert plain["idle"]["step_s"] == pytest.approx(4)
    assert plain["memory"] == {
        "bytes": 1e9,
        "held": {"batch": {"most": 1, "bytes": 1e9, "where": "host"}},
        "peak_bytes": {"host": 1e9},
    }
    pipelined = told(capsys, PROGRAM, "-p", "pipelined-boundary", costs, "--micro-batches=3")
    assert pipelined["period_s"] == 34
    assert pipelined["over_bound"] == 1
    assert pipelined["bottleneck"].startswith("trainer is the bottleneck")
    assert [part["op"] for part in pipelined["critical_cycle"]].count("log") == 0
    assert pipelined["memory"]["held"]["batch"]["most"] == 2
    assert pipelined["slack_s"]["log"] > 0


def test_the_report_says_it_in_words(capsys, costs):
    assert main(["plan", PROGRAM, costs, "--micro-batches=3"]) == 0
    said = capsys.readouterr().out
    assert "period        38 s" in said
    assert "3 x fwd_bwd (30 s on trainer)" in said
    assert "grpo.py:" in said


def test_unequal_counts_are_told_as_bounds(capsys, costs):
    found = told(capsys, PROGRAM, costs, "--micro-batches=2,4")
    assert not found["exact"]
    assert (found["least_period_s"], found["period_s"]) == (28, 48)
    assert main(["plan", PROGRAM, costs, "--micro-batches=2,4"]) == 0
    assert "between 28 s and 48 s on average" in capsys.readouterr().out


def test_a_search_prints_a_pipeline_that_opt_takes(capsys, costs):
    found = told(capsys, PROGRAM, costs, "--micro-batches=3", "--auto")
    assert found["period_s"] == found["bound_s"]
    assert "no legal schedule is faster" in found["stopped"]
    again = told(capsys, PROGRAM, "-p", found["pipeline"], costs, "--micro-batches=3")
    assert again["period_s"] == found["period_s"]


def test_a_search_keeps_within_the_memory(capsys, costs):
    found = told(capsys, PROGRAM, costs, "--micro-batches=3", "--auto", "--memory=1 GB")
    assert found["memory"]["bytes"] <= 1e9
    free = told(capsys, PROGRAM, costs, "--micro-batches=3", "--auto")
    assert free["memory"]["bytes"] > 1e9
    assert free["period_s"] < found["period_s"]


def test_a_table_over_settings(capsys, costs):
    found = told(capsys, PROGRAM, costs, "--sweep", "staleness=0..1", "micro_batches=2,3")["sweep"]
    assert [(row["staleness"], row["micro_batches"]) for row in found] == [(0, 2), (0, 3), (1, 2), (1, 3)]
    assert [row["period_s"] for row in found] == [28, 38, 28, 38]


BOTH = "async-weight-sync,async-checkpoint"


def test_copies_over_the_memory_are_refused_or_take_turns(capsys, tmp_path):
    path = tmp_path / "slow.toml"
    path.write_text(f'{COSTS}[ops.sync_weights]\nwork = "6 s"\n[ops.save_checkpoint]\nwork = "5 s"\n')
    costs = f"--costs={path}"
    name = 'grpo{staleness=1,save_every=2,saves="may_fail_late"}'
    assert main(["plan", name, "-p", BOTH, costs, "--micro-batches=2", "--memory=8 GB"]) == 1
    said = capsys.readouterr().err
    assert "error[ST334]: the schedule may hold 9 GB at a time, and there is room for 8 GB" in said
    assert "1 x checkpoint copies: 6 GB of trainer memory" in said
    kept = told(capsys, name, "-p", f"{BOTH},memory-budget{{copies=1}}", costs, "--micro-batches=2", "--memory=8 GB")
    assert kept["memory"]["bytes"] == 7e9
    assert kept["memory"]["peak_bytes"]["trainer"] == 6e9


def test_the_pass_takes_the_costs_of_the_command(capsys, costs):
    """What it finds is held against its bound in `test_autoschedule`; here it is told beside the figures."""
    assert main(["plan", PROGRAM, "-p", "autoschedule", costs, "--micro-batches=3", "--json"]) == 0
    said = capsys.readouterr()
    assert "found autoschedule: " in said.err
    assert json.loads(said.out)["period_s"] < 38


def test_a_sweep_is_a_table_and_a_plot(capsys, costs, tmp_path):
    svg = tmp_path / "plot.svg"
    arguments = ["plan", PROGRAM, costs, "-p", "pipelined-boundary", "--sweep", "staleness=0..1", "micro_batches=2,3"]
    assert main([*arguments, f"--svg={svg}"]) == 0
    said = capsys.readouterr().out
    table, *plots = said.split("\n\n")
    assert len(table.splitlines()) == 5
    assert [plot.splitlines()[0] for plot in plots] == ["period", "idle", "memory"]
    bars = {line.split("  ")[1]: line.count("#") for line in plots[0].splitlines()[1:]}
    assert bars == {
        "staleness=0 micro_batches=2": 29,  # 28 of 38 s
        "staleness=0 micro_batches=3": 40,
        "staleness=1 micro_batches=2": 25,  # 24 of 38 s
        "staleness=1 micro_batches=3": 36,
    }
    root = ElementTree.parse(svg).getroot()
    assert root.tag.endswith("svg")
    widths = [float(one.get("width")) for one in root.iter() if one.get("class") == "bar"]
    assert len(widths) == 12
    assert widths[1] == 380.0


def test_a_sweep_that_searches_tells_each_setting_as_it_begins(capsys, costs):
    arguments = ["plan", PROGRAM, costs, "--sweep", "micro_batches=2,1"]
    assert main([*arguments, "--auto"]) == 0
    said = capsys.readouterr()
    assert [line for line in said.err.splitlines() if " of " in line and line.startswith("micro")] == [
        "micro_batches=2 ... 1 of 2",
        "micro_batches=1 ... 2 of 2",
    ]
    assert [plot.splitlines()[0] for plot in said.out.split("\n\n")[1:]] == ["period", "idle", "memory", "staleness"]
    assert main(arguments) == 0
    assert "1 of 2" not in capsys.readouterr().err


def test_a_sweep_may_count_down():
    assert settings_of("staleness=2..0 micro_batches=3..3") == {"staleness": ["2", "1", "0"], "micro_batches": ["3"]}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--micro-batches=10001"], "a step has at most 10,000 micro-batches here"),
        (["--micro-batches=2,99999999999999999999"], "at most 10,000 micro-batches"),
        (["--sweep", "staleness=0..1", "micro_batches=10001"], "`micro_batches=10001`: a step has at most 10,000"),
        (["--sweep", "staleness=0..999999999999"], "with `staleness=0..999999999999` there are more than 10,000"),
        (["--sweep", f"staleness=0..{'9' * 5000}"], "`staleness` has a number of more than 18 digits"),
        (["--sweep", "staleness=0..200", "prompts=1..200"], "with `prompts=1..200` there are more than 10,000"),
    ],
)
def test_what_would_take_for_ever_is_refused_at_once(capsys, costs, more, words):
    assert main(["plan", PROGRAM, costs, *more]) == 2
    assert words in capsys.readouterr().err


def test_a_cost_file_asks_for_no_more_micro_batches_either(capsys, tmp_path):
    path = tmp_path / "many.toml"
    path.write_text(f"{COSTS}[cell]\nmicro_batches = 100000000\n")
    for command in ("plan", "timeline"):
        assert main([command, PROGRAM, f"--costs={path}"]) == 2
        assert "[cell] of the cost file: a step has at most 10,000" in capsys.readouterr().err


def test_control_the_largest_that_may_be_asked_for():
    assert len(settings_of("staleness=0..99 prompts=1..100")["prompts"]) == 100
    assert settings_of("micro_batches=10000") == {"micro_batches": ["10000"]}


@pytest.mark.parametrize(
    "arguments",
    [["plan", "--sweep", "staleness=0..1", "--svg={}"], ["timeline", "--html={}"], ["timeline", "--output={}"]],
)
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_judged(
    capsys, costs, tmp_path, monkeypatch, arguments
):
    def read(path):
        pytest.fail(f"{path} was read")

    monkeypatch.setattr("steptrace.cost.read_costs", read)
    command, *more = (one.format(tmp_path / "missing" / "file") for one in arguments)
    assert main([command, PROGRAM, costs, "--micro-batches=2", *more]) == 1
    assert f"cannot write `{tmp_path}/missing/file`: No such file or directory" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["a" * 300, "no\0where"])
def test_a_name_that_is_none_is_refused_as_a_file_that_cannot_be_written(name):
    with pytest.raises(OutputNotWritableError):
        check_writable(f"{name}/plot.svg")


def test_what_takes_long_is_told_and_what_does_not_is_not(capsys):
    with told_if_slow("twelve settings are judged", after_s=0.01):
        time.sleep(0.3)
    assert capsys.readouterr().err == "twelve settings are judged ...\n"
    with told_if_slow("this is quick", after_s=60):
        pass
    assert capsys.readouterr().err == ""


def test_a_row_that_is_refused_has_its_reason_and_no_bar(capsys, costs):
    assert main(["plan", PROGRAM, costs, "--micro-batches=2", "--memory=1.5 GB", "--sweep", "staleness=1..2"]) == 0
    fine = capsys.readouterr().out
    assert "refused" not in fine
    rows = ["-p", "take-ahead", "--memory=1.5 GB", "--sweep", "staleness=0..1"]
    assert main(["plan", PROGRAM, costs, "--micro-batches=2", *rows]) == 0
    said = capsys.readouterr().out
    assert "ST334: the schedule may hold 2 GB" in said


def test_quantiles_of_step_times(capsys, costs):
    fixed = told(capsys, PROGRAM, costs, "--micro-batches=3")
    assert "spread" not in fixed
    found = told(capsys, PROGRAM, costs, "--micro-batches=3", "--stragglers=log=1x2", "--runs=2")
    assert found["period"] == found["period_s"] == 38
    assert found["spread"]["step_s"] == {"p05": 41, "p50": 41, "p95": 41, "p99": 41, "mean": 41}
    spread = told(capsys, PROGRAM, costs, "--micro-batches=3", "--jitter=0.2", "--runs=2", "--seed=4")["spread"]
    assert spread["step_s"]["p05"] < 38 < spread["step_s"]["p95"]
    again = told(capsys, PROGRAM, costs, "--micro-batches=3", "--jitter=0.2", "--runs=2", "--seed=4")["spread"]
    assert again == spread
    assert main(["plan", PROGRAM, costs, "--micro-batches=3", "--jitter=0.2", "--runs=2"]) == 0
    assert "step times    p05 " in capsys.readouterr().out


def test_opt_takes_costs_and_what_it_says_gives_the_same_text(capsys, costs, tmp_path):
    path = tmp_path / "more.toml"
    path.write_text(f"{COSTS}[cell]\nmicro_batches = 3\n")
    assert main(["opt", PROGRAM, "-p", "autoschedule", f"--costs={path}"]) == 0
    said = capsys.readouterr()
    (line,) = [line for line in said.err.splitlines() if line.startswith("found autoschedule: ")]
    assert main(["opt", PROGRAM, "-p", line.removeprefix("found autoschedule: ")]) == 0
    assert capsys.readouterr().out == said.out
    assert main(["opt", PROGRAM, "-p", "autoschedule"]) == 0
    assert "note: autoschedule declined: there are no costs to judge schedules by" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["grpo", "COSTS", "--micro-batches=2", "--stragglers=log"], 2, "one is fwd_bwd=0.02x5"),
        (
            ["grpo", "COSTS", "--micro-batches=2", "--stragglers=fwd_bdw=0.1x5"],
            2,
            "no op `fwd_bdw`; did you mean `fwd_bwd`",
        ),
        (["grpo", "COSTS", "--micro-batches=2", "--sweep", "staleness=0..1", "staleness=1..2"], 2, "is given twice"),
        (["grpo", "COSTS", "--micro-batches=2", "--svg=plot.svg"], 2, "is the plot of a sweep"),
        (["grpo"], 2, "`plan` needs costs"),
        (["grpo", "COSTS"], 2, "say how many micro-batches"),
        (["grpo", "COSTS", "--micro-batches=0"], 2, "numbers from 1 on"),
        (["grpo", "COSTS", "--micro-batches=2", "--sweep=staleness"], 2, "is no setting"),
        (["grpo", "COSTS", "--micro-batches=2", "--memory=1 MB"], 1, "error[ST334]"),
        (["grpo", "COSTS", "--micro-batches=2", "--auto", "--memory=1"], 2, "one is written"),
        (["grpo", "--costs=no.toml"], 1, "error[ST330]"),
    ],
)
def test_what_means_nothing_is_refused(capsys, costs, arguments, code, said):
    assert main(["plan", *(costs if one == "COSTS" else one for one in arguments)]) == code
    assert said in capsys.readouterr().err


def test_ops_without_costs_are_listed(capsys, tmp_path):
    path = tmp_path / "few.toml"
    path.write_text('[ops.fwd_bwd]\nwork = "1 s"\n')
    assert main(["plan", "grpo", f"--costs={path}", "--micro-batches=2"]) == 1
    said = capsys.readouterr().err
    assert "error[ST332]" in said
    assert "`pack`" in said
    assert "`fwd_bwd`" not in said.partition("have no costs")[0]
