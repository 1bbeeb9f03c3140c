"""An interrupt ends a run even where what it raises gets lost, in a callback of the garbage collector."""

from __future__ import annotations

import gc
import signal
import sys

import pytest

import steptrace
from steptrace.testing.hash_parts import StagingTrainer, hash_parts

PROGRAM = "grpo{prompts=2, samples=2, staleness=1}"


def interrupted_where_it_gets_lost():
    def collecting(phase, info):
        gc.callbacks.remove(collecting)
        signal.raise_signal(signal.SIGINT)

    gc.callbacks.append(collecting)
    gc.collect()


class Interrupted(StagingTrainer):
    """Is interrupted in a call of a method."""

    def __init__(self, verb):
        super().__init__()
        self.verb = verb

    def weights(self):
        self._come("weights")
        return super().weights()

    def fwd_bwd(self, micro_batch, **how):
        self._come("fwd_bwd")
        return super().fwd_bwd(micro_batch, **how)

    def _come(self, verb):
        if verb == self.verb:
            self.verb = ""
            interrupted_where_it_gets_lost()


@pytest.fixture(autouse=True)
def interrupts_raise():
    """A process that a shell runs in the background ignores interrupts, and so do those that it starts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def ignored(monkeypatch):
    """What Python has dropped."""
    seen = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: seen.append(what.exc_type))
    return seen


@pytest.mark.parametrize("pipeline", ["", "pipelined-boundary"])
@pytest.mark.parametrize(("verb", "steps"), [("weights", 0), ("fwd_bwd", 1)])
def test_an_interrupt_that_gets_lost_ends_the_run_all_the_same(verb, steps, pipeline, ignored):
    trainer = Interrupted(verb)
    with pytest.raises(KeyboardInterrupt):
        steptrace.run(PROGRAM, hash_parts(trainer=trainer), steps=9, pipeline=pipeline)
    assert trainer.applied <= steps
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_one_that_gets_lost_before_anything_is_bound_does(ignored, monkeypatch):
    """As while JAX is imported."""
    monkeypatch.setattr("steptrace.run.called.check_call", lambda *given: interrupted_where_it_gets_lost())
    trainer = StagingTrainer()
    with pytest.raises(KeyboardInterrupt):
        steptrace.run(PROGRAM, hash_parts(trainer=trainer), steps=2)
    assert trainer.applied == 0


def test_control_python_drops_it(ignored):
    interrupted_where_it_gets_lost()
    assert ignored == [KeyboardInterrupt]


def test_an_interrupt_of_an_earlier_run_is_not_raised_again():
    class Caught(StagingTrainer):
        def weights(self):
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        steptrace.run(PROGRAM, hash_parts(trainer=Caught()), steps=1)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert steptrace.run(PROGRAM, hash_parts(), steps=1).steps == 1
    finally:
        signal.signal(signal.SIGINT, before)
