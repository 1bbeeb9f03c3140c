"""A run that ends at any moment and is resumed leaves what a run leaves that went through."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from crashes import Crash, FileTracker, Mean, read_lines, run_in
from fakes import HashRollout, HashTrainer, parts

import steptrace
from steptrace.programs.grpo import grpo
from steptrace.programs.grpo_epochs import grpo_epochs
from steptrace.programs.grpo_stream import grpo_stream
from steptrace.run import manifest
from steptrace.run.data.cursor import DataCursor, Draws
from steptrace.run.states import has_state
from steptrace.run.store import checkpoints

SMALL = {"prompts": 3, "samples": 2, "save_every": 2}


@pytest.fixture
def quick_trees(monkeypatch):
    """Published weights are pickled: Orbax has a test of its own and takes a hundred times as long."""

    def save(directory: Path, tree) -> None:
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.write_bytes(pickle.dumps(tree))

    monkeypatch.setattr(manifest, "save_tree", save)
    monkeypatch.setattr(manifest, "restore_tree", lambda directory, like: pickle.loads(directory.read_bytes()))


def crashed_and_resumed(out: Path, program, stop: int, **options):
    out.mkdir()
    with pytest.raises(Crash):
        run_in(out, program, stop=stop, **options)
    return run_in(out, program, **options)[0]


def two_cycles(moments: list[str]) -> range:
    """Every moment from before the first checkpoint to behind the second."""
    saves = [index for index, what in enumerate(moments) if what == "before trainer.save_checkpoint"]
    return range(saves[0] - 3, saves[1] + 14)


def behind_the_second_save(moments: list[str], wanted: str = "before trainer.fwd_bwd") -> int:
    """A moment of the first step behind the second checkpoint."""
    saves = [index for index, what in enumerate(moments) if what == "before trainer.save_checkpoint"]
    return moments.index(wanted, saves[1])


@steptrace.op(takes=("metrics",), gives="level: scalar", reads=[], writes=[])
def rising(metrics):
    """A number that an op behind the checkpoint makes of what the checkpoint holds."""
    return metrics["loss"] + 1.0


@steptrace.op(takes=("scalar", "scalar"), gives="total: scalar", reads=[], writes=[])
def added(total, value):
    return 0.5 * total + value


@steptrace.op(takes=("metrics", "scalar"), gives="shown: metrics", reads=[], writes=[])
def shown(metrics, total):
    return {**metrics, "total": total}


def step_with_save(place: str):
    """A step whose checkpoint stands at a place, with a carry and metrics of its own."""

    @steptrace.program(name=f"save_{place}", staleness=1)
    def saved(step):
        def save(here: str) -> None:
            if here == place:
                with step.every(2):
                    step.save_checkpoint()

        total = step.carry("total", init=1.5)
        step.dispatch(prompts=3, samples=2)
        batch = step.pack(step.advantages(step.reward(step.take())))
        for mb in step.micro_batches(batch):
            step.fwd_bwd(step.ref_logps(mb))
        step.update()
        save("before_metrics")
        metrics = step.get_metrics()
        save("behind_metrics")
        now = added(total.value, rising(metrics))
        total.set(now)
        save("behind_the_carry")
        step.sync_weights()
        save("behind_sync")
        step.commit()
        save("behind_commit")
        step.log(shown(metrics, now))
        save("behind_log")
        step.on_step_end(reads=["metrics"])
        save("at_the_end")

    return saved.trace()


PLACES = ("behind_metrics", "behind_the_carry", "behind_sync", "behind_commit", "behind_log", "at_the_end")


@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_a_crash_around_a_checkpoint(tmp_path, quick_trees, staleness):
    program = grpo.trace(**SMALL, staleness=staleness)
    whole, clock = run_in(tmp_path / "whole", program)
    first = clock.moments.index("before trainer.save_checkpoint")
    for stop in (first - 1, first, first + 1, first + 5, first + 8, len(clock.moments) - 1):
        left = crashed_and_resumed(tmp_path / f"at {stop}", program, stop)
        assert left == whole, clock.moments[stop]


@pytest.mark.slow
@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_a_crash_at_every_moment_of_two_steps_and_more(tmp_path, quick_trees, staleness):
    program = grpo.trace(**SMALL, staleness=staleness)
    whole, clock = run_in(tmp_path / "whole", program)
    for stop in two_cycles(clock.moments):
        left = crashed_and_resumed(tmp_path / f"at {stop}", program, stop)
        assert left == whole, clock.moments[stop]


@pytest.mark.slow
@pytest.mark.parametrize("program", [grpo_epochs, grpo_stream], ids=lambda program: program.name)
def test_other_shapes_of_the_step_resume_alike(tmp_path, quick_trees, program):
    traced = program.trace(**SMALL, staleness=1)
    whole, clock = run_in(tmp_path / "whole", traced)
    for stop in list(two_cycles(clock.moments))[::3]:
        assert crashed_and_resumed(tmp_path / f"at {stop}", traced, stop) == whole, clock.moments[stop]


def test_two_crashes_in_one_run(tmp_path, quick_trees):
    program = grpo.trace(**SMALL, staleness=1)
    whole, clock = run_in(tmp_path / "whole", program, steps=7)
    out = tmp_path / "out"
    for stop in (len(clock.moments) // 2, len(clock.moments) // 4):
        with pytest.raises(Crash):
            run_in(out, program, stop=stop, steps=7)
    assert run_in(out, program, steps=7)[0] == whole


@pytest.mark.parametrize("place", PLACES)
def test_the_checkpoint_may_stand_anywhere_behind_the_training(tmp_path, quick_trees, place):
    program = step_with_save(place)
    whole, clock = run_in(tmp_path / "whole", program)
    second = behind_the_second_save(clock.moments, "after trainer.save_checkpoint")
    for stop in (second, second + 2, second + 4, behind_the_second_save(clock.moments)):
        left = crashed_and_resumed(tmp_path / f"at {stop}", program, stop)
        assert left == whole, clock.moments[stop]


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_a_crash_at_every_other_moment_wherever_the_checkpoint_stands(tmp_path, quick_trees, place):
    program = step_with_save(place)
    whole, clock = run_in(tmp_path / "whole", program)
    for stop in list(two_cycles(clock.moments))[::2]:
        assert crashed_and_resumed(tmp_path / f"at {stop}", program, stop) == whole, clock.moments[stop]


def test_metrics_that_are_fetched_behind_the_checkpoint_are_lost_when_the_run_ends_before(tmp_path, quick_trees):
    program = step_with_save("before_metrics")
    whole, clock = run_in(tmp_path / "whole", program)
    stop = behind_the_second_save(clock.moments, "after trainer.save_checkpoint")
    left = crashed_and_resumed(tmp_path / "out", program, stop)
    assert [step for step, _ in left.logged] == [step for step, _ in whole.logged]
    assert (left.params, left.calls, left.groups, left.trained) == (
        whole.params,
        whole.calls,
        whole.groups,
        whole.trained,
    )


def test_freshest_weights_that_are_not_synced_each_step(tmp_path, quick_trees):
    @steptrace.program(weights="freshest")
    def seldom(step):
        step.dispatch(prompts=3, samples=2)
        for mb in step.micro_batches(step.pack(step.advantages(step.reward(step.take())))):
            step.fwd_bwd(mb)
        step.update()
        metrics = step.get_metrics()
        with step.every(2):
            step.save_checkpoint()
        with step.every(3):
            step.sync_weights()
        step.commit()
        step.log(metrics)
        step.on_step_end(reads=["metrics"])

    program = seldom.trace()
    whole, clock = run_in(tmp_path / "whole", program, steps=8)
    for stop in (behind_the_second_save(clock.moments), len(clock.moments) - 2):
        assert crashed_and_resumed(tmp_path / f"at {stop}", program, stop, steps=8) == whole


def test_control_without_the_published_weights_a_stale_run_goes_on_with_others(tmp_path, quick_trees, monkeypatch):
    program = grpo.trace(**SMALL, staleness=2)
    whole, clock = run_in(tmp_path / "whole", program)
    monkeypatch.setattr(manifest, "restore_tree", lambda directory, like: like)
    left = crashed_and_resumed(tmp_path / "out", program, behind_the_second_save(clock.moments))
    assert left.params != whole.params
    assert left.trained == whole.trained


def test_control_with_the_cursor_at_the_start_other_groups_are_trained(tmp_path, quick_trees, monkeypatch):
    program = grpo.trace(**SMALL)
    whole, clock = run_in(tmp_path / "whole", program)
    monkeypatch.setattr(Draws, "restore", lambda self, state: DataCursor(0))
    left = crashed_and_resumed(tmp_path / "out", program, behind_the_second_save(clock.moments))
    assert left.groups != whole.groups


def test_each_group_is_listed_once_and_in_order(tmp_path, quick_trees):
    program = grpo.trace(**SMALL)
    _, clock = run_in(tmp_path / "whole", program)
    left = crashed_and_resumed(tmp_path / "out", program, behind_the_second_save(clock.moments))
    assert [line["step"] for line in left.trained] == [0, 1, 2, 3, 4]
    groups = [tuple(name) for line in left.trained for name in line["groups"]]
    assert len(groups) == len(set(groups)) == 15


def test_a_resumed_run_seeks_and_does_not_generate_again(tmp_path, quick_trees):
    program = grpo.trace(**SMALL)
    run_in(tmp_path / "out", program, steps=6)
    rollout = HashRollout()
    result = steptrace.run(program, parts(rollout=rollout), steps=8, out=tmp_path / "out", resume=True)
    assert (result.first_step, result.steps) == (6, 8)
    assert rollout.asked == [6, 7]


@pytest.mark.parametrize("steps", [4, 5])
def test_resuming_at_the_end_does_nothing_and_succeeds(tmp_path, quick_trees, steps):
    program = grpo.trace(**SMALL, staleness=1)
    whole, _ = run_in(tmp_path / "out", program, steps=steps)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    again, clock = run_in(tmp_path / "out", program, steps=steps)
    assert again == whole
    done = {moment.partition(" ")[2] for moment in clock.moments}
    assert done == {
        "trainer.weights",
        "trainer.restore_checkpoint",
        "callback.restore_checkpoint",
        "rollout.apply_weights",
        "rollout.drop_weights",
        "tracker.rewind",
        "tracker.close",
    }
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_resuming_beyond_fewer_steps_than_are_done_does_nothing(tmp_path, quick_trees):
    program = grpo.trace(**SMALL)
    run_in(tmp_path / "out", program, steps=4)
    result = steptrace.run(program, parts(), steps=2, out=tmp_path / "out", resume=True)
    assert (result.first_step, result.steps) == (4, 4)


def test_the_last_step_is_saved_though_its_turn_had_not_come(tmp_path, quick_trees):
    run_in(tmp_path / "out", grpo.trace(**SMALL), steps=5)
    assert [path.name for path in checkpoints(tmp_path / "out")] == ["00000003", "00000004-end"]


@pytest.mark.parametrize("staleness", [0, 2])
def test_a_run_in_two_parts_is_the_run_in_one(tmp_path, quick_trees, staleness):
    program = grpo.trace(**SMALL, staleness=staleness)
    whole, _ = run_in(tmp_path / "whole", program, steps=7)
    for steps in (3, 5, 7):
        left, _ = run_in(tmp_path / "out", program, steps=steps)
    assert left == whole


def test_data_that_ended_ends_the_resumed_run_too(tmp_path, quick_trees):
    program = grpo.trace(**SMALL)
    whole, _ = run_in(tmp_path / "whole", program, steps=None, epochs=1)
    left, clock = run_in(tmp_path / "whole", program, steps=None, epochs=1)
    assert left == whole
    assert "before rollout.generate" not in clock.moments


def test_a_last_line_that_the_crash_cut_short_is_dropped(tmp_path, quick_trees):
    program = grpo.trace(**SMALL)
    whole, clock = run_in(tmp_path / "whole", program)
    out = tmp_path / "out"
    with pytest.raises(Crash):
        run_in(out, program, stop=behind_the_second_save(clock.moments))
    for name in ("trained_groups.jsonl", "log.jsonl"):
        with (out / name).open("a") as file:
            file.write('{"step": 3, "gro' if name.startswith("t") else "")
    assert run_in(out, program)[0] == whole


def test_a_tracker_without_rewind_sees_the_steps_behind_the_checkpoint_again(tmp_path, quick_trees):
    class Plain:
        def __init__(self):
            self.steps = []

        def log(self, step, metrics):
            self.steps.append(step)

        def close(self):
            pass

    program, tracker = grpo.trace(**SMALL), Plain()
    steptrace.run(program, parts(tracker=tracker), steps=2, out=tmp_path)
    steptrace.run(program, parts(tracker=tracker), steps=3, out=tmp_path, resume=True)
    assert tracker.steps == [0, 1, 2]


def test_the_record_of_the_saved_step_survives_though_nobody_logged_it(tmp_path, quick_trees):
    program = grpo.trace(**SMALL)
    whole, clock = run_in(tmp_path / "whole", program)
    stop = behind_the_second_save(clock.moments, "before tracker.log")
    out = tmp_path / "out"
    with pytest.raises(Crash):
        run_in(out, program, stop=stop)
    assert [record[0] for record in read_lines(out / "log.jsonl")] == [0, 1, 2]
    assert run_in(out, program)[0].logged == whole.logged


def test_published_weights_go_through_orbax(tmp_path):
    program = grpo.trace(**SMALL, staleness=2)
    whole, clock = run_in(tmp_path / "whole", program)
    left = crashed_and_resumed(tmp_path / "out", program, behind_the_second_save(clock.moments))
    assert left == whole


def test_a_part_of_two_roles_is_saved_once(tmp_path, quick_trees):
    class Both(HashTrainer, HashRollout):
        def __init__(self):
            HashTrainer.__init__(self)
            HashRollout.__init__(self)

    program = grpo.trace(**SMALL)
    both = Both()
    steptrace.run(program, parts(trainer=both, rollout=both), steps=2, out=tmp_path)
    assert both.calls.count("save_checkpoint") == 2  # in the step, and behind it
    again = Both()
    result = steptrace.run(program, parts(trainer=again, rollout=again), steps=4, out=tmp_path, resume=True)
    assert result.first_step == 2


def test_log_and_metrics_keep_their_own_step(tmp_path, quick_trees):
    tracker = FileTracker(tmp_path / "log.jsonl")
    steptrace.run(grpo.trace(**SMALL), parts(tracker=tracker), steps=4, out=tmp_path)
    steptrace.run(grpo.trace(**SMALL), parts(tracker=tracker), steps=6, out=tmp_path, resume=True)
    assert [(step, record["step"]) for step, record in read_lines(tracker.path)] == [(k, float(k)) for k in range(6)]


class Wrapped:
    """A part behind a wrapper that hands on whatever it is asked for."""

    def __init__(self, part):
        self.part = part

    def __getattr__(self, name):
        return getattr(self.part, name)


class Half:
    """What can be saved and never read back has no state for a checkpoint."""

    def save_checkpoint(self, directory):
        raise AssertionError


def test_the_state_of_a_part_is_seen_through_a_wrapper():
    assert [has_state(part) for part in (Mean(), Wrapped(Mean()), Wrapped(Wrapped(Mean())))] == [True, True, True]


def test_control_parts_without_a_state():
    assert [has_state(part) for part in (None, Half(), Wrapped(Half()), lambda: None)] == [False] * 4
