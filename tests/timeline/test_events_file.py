"""Files of events: what is written is read again, and what cannot be of a run is refused."""

from __future__ import annotations

import json

import pytest
from timeline_runs import planned

from steptrace.diag.base import SteptraceError
from steptrace.timeline import read_events, write_events


@pytest.mark.parametrize("pipeline", ["", "pipelined-boundary"])
def test_what_is_written_is_read_again(pipeline: str, tmp_path):
    write_events(planned(pipeline), tmp_path / "events.json")
    assert read_events(tmp_path / "events.json") == planned(pipeline)


def _later(tables):
    tables["spans"]["rows"][0][7] += 1e6


def _no_number(tables):
    tables["events"]["rows"][0][2] = "0"


def _other_columns(tables):
    tables["events"]["columns"].reverse()


def _arrow_to_nothing(tables):
    tables["arrows"]["rows"][0][1] = 10**6


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_later, "device trainer"),
        (_no_number, "step is '0'"),
        (_other_columns, "the columns are"),
        (_arrow_to_nothing, "an arrow goes from bar"),
        (lambda tables: tables.pop("lines"), "is incomplete"),
        (lambda tables: tables.update(lines=3), "is incomplete"),
        (lambda tables: tables.update(dropped=float("inf")), "is incomplete"),
        (lambda tables: tables.update(steptrace_events=2), "holds no events of format 1"),
    ],
)
def test_a_file_that_is_damaged_is_refused(damage, said: str, tmp_path):
    path = tmp_path / "events.json"
    write_events(planned(), path)
    tables = json.loads(path.read_text())
    damage(tables)
    path.write_text(json.dumps(tables))
    with pytest.raises(SteptraceError, match=said) as caught:
        read_events(path)
    assert caught.value.code == "ST640"


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "is no JSON"), ("[" * 100_000, "is no JSON"), ("[]", "holds no events"), (None, "cannot read")],
    ids=["open", "deep", "list", "none"],
)
def test_another_file_is_refused(text: str | None, said: str, tmp_path):
    path = tmp_path / "events.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SteptraceError, match=said):
        read_events(path)
