import json
import sys

import pytest

from steptrace.diag.job import TrackerMissingError
from steptrace.run.job.trackers import JsonLines, TensorBoard, read_records


def steps_in(path):
    return [record["step"] for record in read_records(path)]


def test_each_step_is_a_line_with_its_pace(tmp_path):
    tracker = JsonLines(tmp_path / "metrics.jsonl")
    tracker.log(0, {"step": 0.0, "reward": 0.25, "completion_tokens": 100.0})
    tracker.log(1, {"step": 1.0, "reward": 0.5})
    tracker.close()
    first, second = (json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert (first["reward"], second["reward"]) == (0.25, 0.5)
    assert first["tokens_per_s"] > 0
    assert second["tokens_per_s"] == 0
    assert second["seconds"] >= first["seconds"]


def test_rewind_drops_what_was_logged_behind_the_step(tmp_path):
    path = tmp_path / "metrics.jsonl"
    tracker = JsonLines(path)
    for step in range(5):
        tracker.log(step, {"step": float(step), "reward": step / 10})
    third = read_records(path)[3]
    JsonLines(path).rewind(3, {"reward": 0.3})
    assert steps_in(path) == [0, 1, 2, 3]
    assert read_records(path)[-1] == third
    JsonLines(path).rewind(-1, None)
    assert steps_in(path) == []


def test_rewind_adds_the_record_of_the_step_when_it_was_lost(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0.0}\n{"step": 1.0')
    JsonLines(path).rewind(1, {"reward": 0.5})
    assert read_records(path) == [{"step": 0.0}, {"reward": 0.5, "step": 1}]


def test_a_line_that_was_cut_short_is_no_record(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0.0}\n{"step": 1.0, "rew')
    assert steps_in(path) == [0]
    JsonLines(path).rewind(2, {"reward": 1.0})
    assert steps_in(path) == [0, 2]


def test_no_file_holds_no_records(tmp_path):
    assert read_records(tmp_path / "metrics.jsonl") == []


def test_tensorboard_events_are_written_and_voided_from_the_step_on(tmp_path):
    pytest.importorskip("tensorboardX")
    tracker = TensorBoard(tmp_path / "events")
    tracker.rewind(2, None)
    tracker.log(2, {"step": 2.0, "reward": 0.5})
    tracker.close()
    (file,) = (tmp_path / "events").iterdir()
    content = file.read_bytes()
    assert b"reward" in content
    assert b"step" not in content.replace(b"global_step", b"")


def test_tensorboard_names_its_extra_when_it_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(TrackerMissingError) as caught:
        TensorBoard(tmp_path)
    assert "steptrace[tensorboard]" in caught.value.help


def test_a_metric_that_is_no_number_is_null_as_json_has_it(tmp_path):
    tracker = JsonLines(tmp_path / "metrics.jsonl")
    tracker.log(0, {"step": 0.0, "loss": float("nan"), "kl": float("inf"), "reward": 0.5})
    tracker.rewind(0, {"loss": float("nan")})
    tracker.rewind(1, {"loss": float("nan")})

    def strict(word):
        raise AssertionError(f"{word} is not JSON")

    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    first, second = (json.loads(line, parse_constant=strict) for line in lines)
    assert (first["loss"], first["kl"], first["reward"]) == (None, None, 0.5)
    assert second == {"loss": None, "step": 1}
