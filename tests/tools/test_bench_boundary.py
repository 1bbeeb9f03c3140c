"""`steptrace bench boundary`: how idle time is measured, what is fitted, and what follows in virtual time."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from steptrace.simulate import VirtualTrainer
from steptrace.testing import ReplayTrainer
from steptrace_tools.bench import virtual_boundary as model
from steptrace_tools.bench.arms import ARMS
from steptrace_tools.bench.boundary import rounded, summary
from steptrace_tools.bench.boundary_parts import Workload
from steptrace_tools.bench.boundary_run import Arm, fitted, measured
from steptrace_tools.bench.virtual_boundary import MEASURED, Parameters, figures, simulated, virtual_boundary
from steptrace_tools.bench.watched import Payloads, Seen, Watcher, boundary_figures
from steptrace_tools.cli import main


def seen(kind: str, step: int, index: int, start: float, end: float) -> Seen:
    return Seen(kind, step, index, start - 3, start - 2, start - 1.5, start - 1, start - 0.5, start, end)


SEEN = [
    seen("fwd_bwd", 0, 0, 10, 20),
    seen("fwd_bwd", 0, 1, 20, 32),
    seen("update", 0, -1, 35, 36),
    seen("fwd_bwd", 1, 0, 50, 60),
    seen("fwd_bwd", 1, 1, 61, 71),
    seen("update", 1, -1, 71, 72),
    seen("fwd_bwd", 2, 0, 75, 85),
    seen("update", 2, -1, 85, 86),
]


def test_idle_is_what_lies_between_two_steps_without_the_update():
    found = boundary_figures(SEEN, 0)
    assert found["idle_ms"] == [1e3 * (18 - 1), 1e3 * (4 - 1)]
    assert found["step_ms"] == [40e3, 25e3]
    assert found["busy_s"] == 10 + 12 + 1 + 10 + 10 + 1
    assert found["whole_s"] == 65


def test_the_first_steps_are_not_counted():
    assert boundary_figures(SEEN, 1)["step_ms"] == [25e3]


def test_each_parameter_is_a_figure_of_the_base_arm():
    phases = [
        {"dispatch": 1.0, "take": 2.0, "pack": 4.0, "fwd_bwd": 99.0, "sync_weights": 5.0, "log": 6.0, "free": 1.0}
    ]
    parameters = fitted(Arm(phases=phases, seen=[SEEN], fetches=[0.25, 0.5, 9.0]), 2)
    assert parameters.micro_batch_s == 11  # of 12 and 10: the first ones of their steps are left out
    assert parameters.update_s == 1
    assert parameters.ship_s == 2
    assert parameters.link_s == 0.5
    assert parameters.call_s == 1
    assert parameters.fetch_s == 0.5
    assert (parameters.data_s, parameters.sync_s, parameters.report_s) == (7, 5, 7)


def test_a_payload_is_no_memory_that_jax_would_alias():
    payloads = Payloads(0.25)
    for index in range(4):
        payloads.make(0, index)
    made = list(payloads.made.values())
    assert all(payload.ctypes.data % 64 for payload in made)
    assert {payload.nbytes for payload in made} == {250_000}
    assert len({payload.ctypes.data for payload in made}) == 4


def test_control_jax_aliases_memory_at_a_round_address():
    import jax

    memory = np.zeros(64, np.float32)
    offset = -memory.ctypes.data % 64 // 4
    aligned = memory[offset : offset + 32]
    assert jax.device_put(aligned).unsafe_buffer_pointer() == aligned.ctypes.data
    payloads = Payloads(0.001)
    payloads.make(0, 0)
    assert jax.device_put(payloads.made[0, 0]).unsafe_buffer_pointer() != payloads.made[0, 0].ctypes.data


def test_a_watcher_notes_work_in_the_order_in_which_it_was_sent():
    class Ready:
        def block_until_ready(self):
            pass

    watcher = Watcher()
    for index in range(3):
        watcher.sent("fwd_bwd", 0, index, 0.0, 0.0, 0.0, Ready(), Ready())
    noted = watcher.close()
    assert [one.index for one in noted] == [0, 1, 2]
    assert all(before.end <= after.start <= after.end for before, after in pairwise(noted))


QUIET = Parameters(0.082, 0.004, 0.02, 0.03, 0.0005, 0.001, 0.002, 0.04, 0.02)


@pytest.fixture(scope="module")
def virtual():
    return virtual_boundary(QUIET, micro_batches=4)


def test_what_was_to_be_shown_in_virtual_time_is(virtual):
    claims = dict(virtual["claims"])
    hidden = claims.pop("under replay a stage in front of it hides (ms)")
    assert hidden >= 1e3 * (QUIET.ship_s + QUIET.link_s - QUIET.call_s) - 1e-6
    assert all(value is True for value in claims.values())


def test_the_measured_base_shows_it_too():
    before, after = (
        figures(simulated(arm, MEASURED, 9, ReplayTrainer("first"))) for arm in ("staged-before", "staged-after")
    )
    assert (before["stages"], before["latched"]) == (7, False)
    assert (after["stages"], after["latched"]) == (1, True)


def test_control_without_replay_the_stage_behind_the_update_hides_as_much(virtual):
    plain = virtual["trainers"]["plain"]
    assert not plain["staged-after"]["latched"]
    assert plain["staged-after"]["idle_ms_median"] <= plain["staged-before"]["idle_ms_median"]


def test_every_free_parameter_says_what_it_is_fitted_to(virtual):
    assert all(found["fitted_to"].startswith("base: ") for found in virtual["parameters"].values())
    assert len(virtual["sensitivity"]) == 1 + 2 * len(virtual["parameters"])


def test_no_parameter_changed_by_a_fifth_changes_who_latches(virtual):
    assert {tuple(found["latched"]) for found in virtual["sensitivity"].values()} == {(False, True)}


def test_control_a_link_slower_than_the_work_latches_in_front_of_the_update_too():
    slow = replace(QUIET, ship_s=2 * QUIET.micro_batch_s)
    assert figures(simulated("staged-before", slow, 3, ReplayTrainer("none")))["latched"]
    assert not figures(simulated("staged-before", QUIET, 3, ReplayTrainer("none")))["latched"]


def test_the_claimed_gaps_are_met_by_parameters_that_differ(virtual):
    met = [found["as chosen"] for found in virtual["claimed"]["met_by"].values()]
    assert [(gaps["gap_before"], gaps["gap_after"], gaps["device_wait"]) for gaps in met] == [(6.7, 15.3, 5.45)] * 3


def test_every_arm_calls_the_trainer_alike():
    runs = [simulated(arm, QUIET, 4, VirtualTrainer()) for arm in ARMS]
    assert len({(run.calls, run.trained) for run in runs}) == 1


@pytest.mark.parametrize("flags", [["--json"], []])
def test_the_command_prints_it(
    flags: list[str], virtual, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(model, "virtual_boundary", lambda parameters, *, micro_batches: virtual)
    assert main(["bench", "boundary", "--virtual", *flags]) == 0
    printed = capsys.readouterr().out
    if flags:
        assert json.loads(printed) == rounded(virtual)
    else:
        assert "the parameters cannot be fitted to the base" in printed
        assert "replay of the last" in printed


def test_another_measurement_is_fitted_to_its_base_arm(tmp_path: Path, virtual, capsys: pytest.CaptureFixture[str]):
    arms = {name: dict.fromkeys(("idle_ms_median", "step_ms_median", "busy_fraction"), 1.0) for name in ARMS}
    measured = {"arms": arms, "virtual": arms, "parameters": virtual["parameters"]}
    file = tmp_path / "base.json"
    file.write_text("a line of something else\n" + json.dumps(measured) + "\n")
    assert main(["bench", "boundary", "--virtual", f"--base={file}", "--json", "--micro-batches=1"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert {name: found["ms"] for name, found in printed["parameters"].items()} == {
        name: pytest.approx(found["ms"]) for name, found in virtual["parameters"].items()
    }
    assert {found["used"] for found in printed["outcomes"].values()} == {"fitted", "outcome"}


@pytest.mark.parametrize("content", ["", "[]", "{}", "no json"])
def test_a_file_that_is_no_measurement_is_wrong_usage(content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "base.json"
    file.write_text(content)
    assert main(["bench", "boundary", "--virtual", f"--base={file}"]) == 2
    assert "bench boundary --json" in capsys.readouterr().err


def test_numbers_are_rounded_wherever_they_are():
    assert rounded({"a": [1.23456789, {"b": (2.0,)}], "c": 3, "d": True}) == {
        "a": [1.234568, {"b": [2.0]}],
        "c": 3,
        "d": True,
    }


TINY = Workload(megabytes=0.5, micro_batches=2, rows=4, dim=16, host_ms=0.0, steps=4, rounds=1)


@pytest.mark.slow
@pytest.mark.parametrize("replay", [False, True])
def test_every_arm_trains_the_same_on_jax(replay: bool):
    found = rounded(summary(measured(replace(TINY, replay=replay), "inline").arms, TINY, "inline"))
    assert found["equal"]
    assert found["arms"].keys() == ARMS.keys()
    for arm in found["arms"].values():
        assert {"idle_ms_median", "step_ms_median", "busy_fraction", "params_digest", "calls_digest"} <= arm.keys()
        assert arm["params_digest"] == found["arms"]["base"]["params_digest"]
        assert arm["calls_digest"] == found["arms"]["base"]["calls_digest"]
        assert 0 < arm["busy_fraction"] <= 1
        assert arm["step_ms_median"] > arm["idle_ms_median"] >= 0


def test_control_runs_that_differ_are_not_equal():
    def arm(digest: str) -> Arm:
        phases = [{}]
        return Arm([1.0], [2.0], 1.0, 2.0, {(digest, "calls")}, phases, [SEEN], [0.1], [0])

    arms = {name: arm("same") for name in ARMS}
    assert summary(arms, TINY, "inline")["equal"]
    assert not summary({**arms, "pipelined": arm("other")}, TINY, "inline")["equal"]


@pytest.mark.slow
def test_workers_train_what_one_process_does_under_every_arm():
    """The device is watched in the trainer's worker; payloads come with the micro-batches."""
    work = Workload(megabytes=1.0, micro_batches=3, rows=8, dim=16, host_ms=1.0, steps=4, rounds=1)
    there, here = measured(work, "process").arms, measured(work, "inline").arms
    digests = set().union(*(arm.digests for arm in (*there.values(), *here.values())))
    assert len(digests) == 1
    assert [len(one.seen[0]) for one in there.values()] == [2 * (3 + 1)] * len(ARMS)
    assert [there[arm].stages for arm in ("base", "pipelined")] == [[0], [0]]
    for arm in there.values():
        for one in arm.seen[0]:
            assert one.called <= one.returned <= one.end or one.kind == "update"
            assert one.sent <= one.start <= one.end
