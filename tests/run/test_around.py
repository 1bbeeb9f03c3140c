"""What is put around ops sees every instance of every op, innermost first, and may make one fail."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
from fakes import parts

import steptrace

PROGRAM = "grpo{staleness=1, prompts=4, samples=2}"


class Seen:
    """Notes which op ran for which step, on which thread, in front of it and behind it."""

    def __init__(self, name: str, into: list[tuple[str, str, int]]) -> None:
        self.name, self.into, self.threads = name, into, set[str]()

    def __call__(self, rule):
        def wrapped(run, at, *operands):
            self.into.append((self.name, at.op.kind, at.step))
            self.threads.add(threading.current_thread().name)
            return rule(run, at, *operands)

        return wrapped


@pytest.mark.parametrize("pipeline", ["", "pipelined-boundary"])
def test_every_op_of_every_step_is_seen_and_nothing_changes(pipeline):
    into: list[tuple[str, str, int]] = []
    seen = Seen("inner", into)
    plain = steptrace.run(PROGRAM, parts(), steps=3, pipeline=pipeline, stage_latch_s=0)
    watched = steptrace.run(PROGRAM, parts(), steps=3, pipeline=pipeline, stage_latch_s=0, around=[seen])
    assert watched.params_digest == plain.params_digest
    assert watched.calls_digest == plain.calls_digest
    counts = Counter((kind, step) for _, kind, step in into)
    assert [counts["commit", step] for step in range(4)] == [1, 1, 1, 0]
    assert counts["sync_weights", -1] == 1
    assert len(seen.threads) == (2 if pipeline else 1)


def test_the_first_is_innermost():
    into: list[tuple[str, str, int]] = []
    steptrace.run(PROGRAM, parts(), steps=1, around=[Seen("inner", into), Seen("outer", into)])
    names = [name for name, kind, step in into if (kind, step) == ("commit", 0)]
    assert names == ["outer", "inner"]


def test_a_failure_put_there_is_that_of_the_op():
    def failing(rule):
        def wrapped(run, at, *operands):
            if (at.op.kind, at.step) == ("reward", 1):
                raise ZeroDivisionError("on purpose")
            return rule(run, at, *operands)

        return wrapped

    with pytest.raises(ZeroDivisionError) as caught:
        steptrace.run(PROGRAM, parts(), steps=3, pipeline="pipelined-boundary", around=[failing])
    assert "in `reward` of step 1, lane packer" in caught.value.__notes__[0]
