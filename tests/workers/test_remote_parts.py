"""``steptrace.remote``: which factories and arguments are refused, and with which words."""

from __future__ import annotations

import functools
import threading
from pathlib import Path

import numpy as np
import pytest
from worker_parts import Box, Mute, ending, failing

import steptrace
from steptrace.diag.workers import (
    RemoteFactoryError,
    UnpicklableError,
    WorkerCallError,
    WorkerStartError,
)
from steptrace.lang.records import MicroBatch
from steptrace.workers import Worker, remote


def local_factory():
    def make():
        return None

    return make


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        (lambda: None, "a lambda"),
        (local_factory(), "`local_factory.<locals>.make`, which is defined inside a function"),
        (Box().add, "`Box.add`, a method of an object"),
        (functools.partial(lambda: None), "a lambda"),
        (3, "not by 3"),
    ],
)
def test_a_factory_without_a_name_of_its_own_is_refused(factory, words: str):
    with pytest.raises(RemoteFactoryError) as caught:
        remote(factory)
    assert words in caught.value.message
    assert caught.value.loc.source().startswith("remote(factory)")


def test_a_factory_whose_name_stands_for_something_else_is_refused(monkeypatch):
    original = Box
    monkeypatch.setattr("worker_parts.Box", object)
    with pytest.raises(RemoteFactoryError, match=r"`worker_parts.Box`: that name stands for something else"):
        remote(original)


@pytest.mark.parametrize("factory", [Box, functools.partial(Box, 3), Path.cwd, len])
def test_control_a_factory_with_a_name_is_taken(factory):
    assert remote(factory).factory == factory


class Holder:
    def __init__(self, value):
        self.value = value


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"schedule": lambda step: step}, "argument `schedule` cannot be sent"),
        ({"options": {"a": [1, threading.Lock()]}}, "argument `options['a'][1]` cannot be sent"),
        ({"holder": Holder((1, Holder(lambda: 0)))}, "argument `holder.value[1].value` cannot be sent"),
    ],
)
def test_an_argument_that_cannot_be_sent_is_named_with_its_path(arguments, words: str):
    with pytest.raises(UnpicklableError) as caught:
        remote(Box, **arguments)
    assert words in caught.value.message
    assert caught.value.loc.source().startswith("remote(Box, **arguments)")


def test_an_argument_of_a_call_that_cannot_be_sent_is_refused_before_anything_is_sent():
    worker = Worker.start(remote(Box))
    batch = MicroBatch(0, 0, {"tokens": np.zeros(100_000), "hook": lambda: 0}, keys=())
    with pytest.raises(
        UnpicklableError, match=r"argument 1, at `.arrays\['hook'\]`, cannot be sent .* type `function`"
    ):
        worker.call("echo", 1, batch)
    assert worker.calls_executed == 0
    assert worker.call("add", 1) == 1
    worker.close()


def test_a_result_that_cannot_be_sent_is_named_with_its_path():
    worker = Worker.start(remote(Box))
    with pytest.raises(UnpicklableError, match=r"`result\['inner'\]\[0\]` of type `function` of `function`"):
        worker.call("function")
    assert worker.call("add", 1) == 1
    worker.close()


def test_the_error_of_a_factory_comes_through():
    with pytest.raises(LookupError, match="no such model") as caught:
        Worker.start(remote(failing, "no such model"), name="trainer")
    assert any("worker `trainer`" in note for note in caught.value.__notes__)
    assert "raise LookupError(message)" in str(caught.value.__cause__)


def test_a_process_that_ends_while_it_builds_is_told():
    with pytest.raises(
        WorkerStartError, match=r"`trainer` .* ended with exit code 3 before remote\(ending\) was built"
    ):
        Worker.start(remote(ending, 3), name="trainer")


class OwnError(steptrace.SteptraceError):
    code = "ST999"


ERRORS = [ValueError("bad", 3), KeyError("name"), OSError(2, "gone"), StopIteration(4), ZeroDivisionError()]


@pytest.fixture(scope="module")
def box():
    worker = Worker.start(remote(Box), name="box")
    yield worker
    worker.close()


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_keeps_its_type_and_what_it_carries(box, error: Exception):
    with pytest.raises(type(error)) as caught:
        box.call("fail", error)
    assert caught.value.args == error.args
    assert any(note.startswith("raised in worker `box`") and "`fail`" in note for note in caught.value.__notes__)
    assert "raise error" in str(caught.value.__cause__)


def test_a_coded_error_keeps_code_place_notes_and_way_out(box):
    from steptrace.diag.base import Note
    from steptrace.diag.loc import Loc

    error = OwnError("it went wrong", loc=Loc("a.py", 3), notes=(Note("first", Loc("b.py", 4)),), help="do it")
    with pytest.raises(OwnError) as caught:
        box.call("fail", error)
    found = caught.value
    assert (found.code, found.message, found.loc, found.help) == ("ST999", error.message, error.loc, error.help)
    assert found.notes[0] == error.notes[0]
    assert "worker `box`" in found.notes[1].text


@pytest.mark.parametrize("method", ["two", "leave"])
def test_an_error_that_cannot_be_made_again_is_told_in_words(box, method: str):
    error, words = {"two": (None, ""), "leave": (SystemExit(3), "SystemExit: 3")}[method]
    with pytest.raises(WorkerCallError) as caught:
        box.call("fail_with_two") if error is None else box.call("fail", error)
    assert (words or "NeedsTwo: 1 and 2") in caught.value.message
    assert "worker `box`" in caught.value.notes[0].text
    assert box.call("nothing") is None


def test_an_error_whose_text_cannot_be_made_comes_with_its_traceback(box):
    with pytest.raises(Mute) as caught:
        box.call("fail", Mute())
    assert "raise error" in str(caught.value.__cause__)


def test_a_missing_method_is_an_attribute_error(box):
    with pytest.raises(AttributeError, match="has no attribute 'fly'"):
        box.call("fly")
