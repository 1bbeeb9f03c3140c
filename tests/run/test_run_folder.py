"""The folder of a run: what is in it, what is refused, and what failures of the disk leave."""

from __future__ import annotations

import fcntl
import json
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fakes import HashRollout, HashTrainer, parts

import steptrace
from steptrace.diag import SteptraceError
from steptrace.diag.checkpoint import (
    BrokenCheckpointError,
    NoCheckpointError,
    OtherModelError,
    OtherProgramError,
    OtherSeedError,
    OutInUseError,
    UnwritableOutError,
)
from steptrace.diag.data import DataStateError
from steptrace.lang.records import Prompt
from steptrace.programs.dr_grpo import dr_grpo
from steptrace.programs.grpo import grpo
from steptrace.run import store
from steptrace.run.data.prompts import ListPrompts
from steptrace.run.manifest import program_fingerprint
from steptrace.run.store import checkpoints

SMALL = {"prompts": 3, "samples": 2, "save_every": 2}
PROGRAM = grpo.trace(**SMALL)


def run(out: Path, steps: int = 4, program=PROGRAM, **options):
    bound = options.pop("bind", None) or parts()
    return steptrace.run(program, bound, steps=steps, out=out, **options)


class Untouched(HashTrainer):
    """A trainer that must not be restored."""

    def restore_checkpoint(self, directory: Path) -> None:
        raise AssertionError("restored from a checkpoint that was to be refused")


def refused(out: Path, error: type[SteptraceError], **options) -> SteptraceError:
    """The error of a resume that touched no part."""
    bound = options.pop("bind", None) or parts(trainer=Untouched())
    with pytest.raises(error) as info:
        run(out, 6, bind=bound, resume=True, **options)
    return info.value


@pytest.fixture
def done(tmp_path) -> Path:
    """The folder of a run of four steps, with checkpoints in and behind step 3."""
    run(tmp_path / "out")
    return tmp_path / "out"


def names(out: Path) -> list[str]:
    return sorted(path.name for path in (out / "checkpoints").iterdir() if path.name != ".lock")


def test_only_the_newest_checkpoints_stay(tmp_path):
    run(tmp_path, 11)
    assert store.KEPT == 2
    assert names(tmp_path) == ["00000009", "00000010-end"]


def test_checkpoints_are_counted_as_numbers(tmp_path):
    for name in ("00000009-end", "00000009", "100000000", "99999999", "00000007.bak", ".saving-00000011", "notes"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    found = [path.name for path in checkpoints(tmp_path)]
    assert found == ["00000009", "00000009-end", "99999999", "100000000"]


def test_nothing_to_resume_from(tmp_path):
    error = refused(tmp_path / "none", NoCheckpointError)
    assert error.help.startswith("run without resume")
    assert not (tmp_path / "none").exists()


def test_nothing_to_resume_from_where_the_step_never_saves(tmp_path):
    @steptrace.program()
    def forgetful(step):
        step.dispatch(prompts=2, samples=2)
        for mb in step.micro_batches(step.pack(step.advantages(step.reward(step.take())))):
            step.fwd_bwd(mb)
        step.update()
        step.sync_weights()
        step.commit()

    error = refused(tmp_path / "none", NoCheckpointError, program=forgetful.trace())
    assert "`forgetful` keeps none: `with step.every(10): step.save_checkpoint()`" in error.help


def test_another_step_of_the_same_name_and_parameters(done):
    """What differs is told op by op."""
    saved = grpo.trace(**SMALL)
    body = tuple(node for node in saved.body if getattr(node, "kind", "") != "on_step_end")
    error = refused(done, OtherProgramError, program=replace(saved, body=body))
    assert [note.text for note in error.notes] == ["here `on_step_end`: left out"]


def test_another_program(done):
    error = refused(done, OtherProgramError, program=dr_grpo.trace(**SMALL))
    assert [note.text for note in error.notes] == ["program: grpo there, dr_grpo here"]


@pytest.mark.parametrize(("name", "was", "value"), [("prompts", 3, 4), ("save_every", 2, 3), ("staleness", 0, 1)])
def test_other_parameters_of_the_program(done, name, was, value):
    error = refused(done, OtherProgramError, program=grpo.trace(**{**SMALL, name: value}))
    assert [note.text for note in error.notes] == [f"{name}: {was} there, {value} here"]


def test_the_lines_of_the_program_do_not_count(done):
    """The same step, written elsewhere."""

    @steptrace.program(name="grpo", staleness=0)
    def elsewhere(step, prompts: int = 32, samples: int = 8, save_every: int = 10):
        step.dispatch(prompts=prompts, samples=samples)
        batch = step.pack(step.advantages(step.reward(step.take()), estimator="grpo"))
        for mb in step.micro_batches(batch):
            step.fwd_bwd(step.ref_logps(mb))
        step.update()
        metrics = step.get_metrics()
        with step.every(save_every):
            step.save_checkpoint()
        step.sync_weights()
        step.commit()
        step.log(metrics)
        step.on_step_end(reads=["metrics"])

    assert run(done, 6, program=elsewhere.trace(**SMALL), resume=True).first_step == 4


def test_control_the_order_of_ops_counts(done):
    @steptrace.program(name="grpo", staleness=0)
    def other(step, prompts: int = 32, samples: int = 8, save_every: int = 10):
        step.dispatch(prompts=prompts, samples=samples)
        batch = step.pack(step.advantages(step.reward(step.take()), estimator="grpo"))
        for mb in step.micro_batches(batch):
            step.fwd_bwd(step.ref_logps(mb))
        step.update()
        with step.every(save_every):
            step.save_checkpoint()
        metrics = step.get_metrics()
        step.sync_weights()
        step.commit()
        step.log(metrics)
        step.on_step_end(reads=["metrics"])

    assert program_fingerprint(other.trace(**SMALL)) != program_fingerprint(PROGRAM)
    refused(done, OtherProgramError, program=other.trace(**SMALL))


def test_another_seed(done):
    error = refused(done, OtherSeedError, seed=1)
    assert "seed 0, not 1" in error.message
    assert error.help.startswith("resume with seed=0, or ")


@pytest.mark.parametrize("params", [{"w": np.zeros(5)}, {"w": np.zeros(4, np.float32)}, {"v": np.zeros(4)}])
def test_another_model(done, params):
    class Other(Untouched):
        def __init__(self):
            super().__init__()
            self.params = params

        def weights(self):
            return dict(self.params), self.applied

    error = refused(done, OtherModelError, bind=parts(trainer=Other()))
    name = next(iter(params))
    here = f"{params[name].dtype}{list(params[name].shape)}"
    told = [note.text for note in error.notes if note.text.startswith(f"{name}: ")]
    assert told == [f"{name}: {'float64[4]' if name == 'w' else 'nothing'} there, {here} in the model"]
    assert error.help == "resume with the model of the first run, or start another run in another folder"


def test_other_prompts(done):
    fewer = ListPrompts([Prompt(f"p:{index}", "x") for index in range(9)])
    refused(done, DataStateError, bind=parts(trainer=Untouched(), prompts=fewer))


@pytest.mark.parametrize(("id", "text"), [("p:{}", "other {}"), ("q:{}", "prompt {}")])
def test_other_prompts_of_the_same_number(done, id, text):
    other = ListPrompts([Prompt(id.format(index), text.format(index)) for index in range(10)])
    error = refused(done, DataStateError, bind=parts(trainer=Untouched(), prompts=other))
    assert "was written with other prompts: the one drawn last, number 12" in error.message


def test_control_the_same_prompts_from_another_source(done):
    same = [Prompt(f"p:{index}", f"prompt {index}") for index in range(10)]
    assert run(done, 6, bind=parts(prompts=same), resume=True).steps == 6


def test_control_prompts_with_a_state_of_their_own_may_have_changed_since(tmp_path):
    class Grows(list):
        """A prompt's text tells how often prompts were read."""

        reads = 0

        def __getitem__(self, index):
            self.reads += 1
            return Prompt(f"p:{index}", f"{index} {self.reads}")

        def save_checkpoint(self, directory):
            directory.mkdir(parents=True)
            (directory / "reads").write_text(str(self.reads))

        def restore_checkpoint(self, directory):
            self.reads = int((directory / "reads").read_text())

    run(tmp_path, bind=parts(prompts=Grows(range(10))))
    assert run(tmp_path, 6, bind=parts(prompts=Grows(range(10))), resume=True).steps == 6


FILES = ("manifest.json", "trainer/w.npy", "trainer/applied.json")


@pytest.mark.parametrize("name", FILES)
def test_a_file_cut_short(done, name):
    path = checkpoints(done)[-1] / name
    path.write_bytes(path.read_bytes()[:-1])
    assert str(path) in refused(done, BrokenCheckpointError).message


@pytest.mark.parametrize("name", FILES)
def test_a_file_with_one_other_byte(done, name):
    path = checkpoints(done)[-1] / name
    data = bytearray(path.read_bytes())
    place = data.index(b"3") if name == "manifest.json" else len(data) - 1
    data[place] ^= 1
    path.write_bytes(bytes(data))
    assert str(path) in refused(done, BrokenCheckpointError).message


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_missing(done, name):
    path = checkpoints(done)[-1] / name
    path.unlink()
    assert str(path) in refused(done, BrokenCheckpointError).message


@pytest.mark.parametrize("text", ["", "null", "[]", "{}", '{"format": 1}', '{"format": 2, "crc": 0, "facts": {}}'])
def test_a_manifest_that_is_none(done, text):
    (checkpoints(done)[-1] / "manifest.json").write_text(text)
    refused(done, BrokenCheckpointError)


def test_control_an_edit_of_the_manifest_that_keeps_it_whole_is_seen(done):
    path = checkpoints(done)[-1] / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["facts"]["carries"]["made_up"] = 1.0
    path.write_text(json.dumps(manifest))
    assert "other contents" in refused(done, BrokenCheckpointError).message


def test_the_checkpoint_before_a_broken_one_can_be_resumed(done):
    whole = run(done.with_name("whole"), 6)
    path = checkpoints(done)[-1] / "trainer" / "w.npy"
    path.write_bytes(path.read_bytes()[:-1])
    refused(done, BrokenCheckpointError)
    shutil.rmtree(checkpoints(done)[-1])
    result = run(done, 6, resume=True)
    assert result.first_step == 4
    assert result.params_digest == whole.params_digest


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    trainer = HashTrainer()
    with pytest.raises(UnwritableOutError):
        run(tmp_path / "file" / "out", bind=parts(trainer=trainer))
    assert trainer.calls == []


def test_a_folder_that_holds_a_run(done):
    with pytest.raises(OutInUseError):
        run(done)


def test_a_folder_in_which_another_process_runs(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    with (tmp_path / "checkpoints" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(OutInUseError):
            run(tmp_path)
    assert run(tmp_path).steps == 4


def test_a_folder_is_free_again_after_a_run_that_failed(tmp_path):
    class Broken(HashTrainer):
        def update(self):
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError):
        run(tmp_path, bind=parts(trainer=Broken()))
    assert run(tmp_path).steps == 4


def test_what_a_killed_save_left_is_ignored_and_removed(done):
    left = done / "checkpoints" / ".saving-00000005"
    (left / "trainer").mkdir(parents=True)
    (left / "manifest.json").write_text("{}")
    assert run(done, 6, resume=True).first_step == 4
    assert names(done) == ["00000005", "00000005-end"]


def test_a_fresh_run_begins_its_list_anew(tmp_path):
    (tmp_path / "trained_groups.jsonl").write_text('{"step": 0, "groups": [["of another run", 0]]}\n')
    run(tmp_path, 3)
    lines = [json.loads(line) for line in (tmp_path / "trained_groups.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2]
    assert "of another run" not in (tmp_path / "trained_groups.jsonl").read_text()


class NoSpace(HashTrainer):
    """A trainer that writes half of its second checkpoint."""

    saves = 0

    def save_checkpoint(self, directory: Path) -> None:
        self.saves += 1
        if self.saves == 2:
            directory.mkdir(parents=True)
            (directory / "w.npy").write_bytes(b"half")
            raise OSError(28, "No space left on device")
        super().save_checkpoint(directory)


def test_a_trainer_that_cannot_save_ends_the_run_before_it_publishes(tmp_path):
    rollout = HashRollout()
    with pytest.raises(OSError, match="No space left") as info:
        run(tmp_path, 6, bind=parts(trainer=NoSpace(), rollout=rollout))
    assert not isinstance(info.value, SteptraceError)
    assert any("`save_checkpoint` of step 3" in note for note in info.value.__notes__)
    assert rollout.given == [0, 1, 2, 3]  # to the version of step 2
    assert names(tmp_path) == [".saving-00000003", "00000001"]
    whole = run(tmp_path / "whole", 6)
    assert run(tmp_path, 6, resume=True).params_digest == whole.params_digest
    assert names(tmp_path) == ["00000005", "00000005-end"]


def test_a_manifest_that_cannot_be_written_leaves_the_checkpoint_before(tmp_path, monkeypatch):
    real = store._write_synced

    def fails(path: Path, text: str) -> None:
        if "00000003" in str(path):
            raise OSError(28, "No space left on device")
        real(path, text)

    monkeypatch.setattr(store, "_write_synced", fails)
    rollout = HashRollout()
    with pytest.raises(UnwritableOutError, match="No space left") as info:
        run(tmp_path, 6, bind=parts(rollout=rollout))
    assert info.value.loc is not None
    assert rollout.given == [0, 1, 2, 3]
    monkeypatch.undo()
    whole = run(tmp_path / "whole", 6)
    result = run(tmp_path, 6, resume=True)
    assert (result.first_step, result.params_digest) == (2, whole.params_digest)


@pytest.mark.parametrize("call", ["os.replace", "os.fsync", "shutil.rmtree"])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_process_that_ends_while_it_puts_a_checkpoint_in_place_leaves_whole_ones(done, monkeypatch, call, nth):
    module, name = call.split(".")
    real, left = getattr(getattr(store, module), name), [nth]

    def ends(*args, **options):
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        return real(*args, **options)

    folder = store.new_checkpoint(done, 5, ended=False)
    place = folder.__enter__()
    (place / "x").write_text("x")
    store.write_manifest(place, {})
    monkeypatch.setattr(getattr(store, module), name, ends)
    with suppress(KeyboardInterrupt):
        folder.__exit__(None, None, None)
    monkeypatch.undo()
    for checkpoint in checkpoints(done):
        store.read_manifest(checkpoint)
    assert "00000003-end" in names(done)


def test_without_out_nothing_is_written_and_saving_is_idle(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trainer = HashTrainer()
    result = steptrace.run(PROGRAM, parts(trainer=trainer), steps=4)
    assert result.steps == 4
    assert "save_checkpoint" not in trainer.calls
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_is_at_its_end_says_so_when_it_is_resumed(done, caplog):
    again = run(done, 4, resume=True)
    assert (again.first_step, again.steps, len(again.records)) == (4, 4, 0)
    assert again.remarks == (f"nothing was left to run: {done} has 4 steps, and none is to follow",)
    assert [(record.levelname, record.message) for record in caplog.records] == [("WARNING", again.remarks[0])]
    assert run(done, 5, resume=True).remarks == ()
