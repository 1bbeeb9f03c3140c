"""The op that a thread is at: known inside of it, also when that runs another run, and nowhere else."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from steptrace.run.remote.places import here, placed


def test_a_run_within_an_op_does_not_take_its_place_away():
    seen = []

    def inner(session, at):
        seen.append(here())

    def outer(session, at):
        seen.append(here())
        placed(inner)(session, "inner")
        seen.append(here())

    placed(outer)(SimpleNamespace(), "outer")
    assert seen == ["outer", "inner", "outer"]
    assert here() is None


def test_an_op_that_fails_is_left_too():
    def failing(session, at):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        placed(failing)(SimpleNamespace(), "op")
    assert here() is None
