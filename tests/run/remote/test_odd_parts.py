"""Parts with methods of a kind of their own train under processes what they train in one process."""

from __future__ import annotations

import pytest
from remote_parts import Patient, bind, digests

import steptrace
from steptrace.diag.workers import UnpicklableError
from steptrace.run.remote.hosting import hosted
from steptrace.testing.hash_parts import HashRollout
from steptrace.workers import remote

PROGRAM = 'grpo{prompts=2, samples=2, staleness=1, save_every=1, saves="may_fail_late"}'


class Telling:
    """A result with one thing in it that is read, and one that no process can send."""

    def __init__(self, held):
        self.update_deferred, self.loss = held, lambda: 0.5


class Odd(Patient):
    """Its calls give what no process can send, where nobody reads it; its update is a method that a property gives."""

    colour = property(lambda self: "blue")

    @property
    def update(self):
        return super().update

    def fwd_bwd(self, micro_batch, **how):
        return Telling((super().fwd_bwd(micro_batch, **how) or {}).get("update_deferred"))

    def apply_deferred_update(self):
        super().apply_deferred_update()
        return {"device_wait_s": None, "norm": lambda: 1.0}

    def save_checkpoint(self, directory):
        super().save_checkpoint(directory)
        return lambda: directory

    def write_checkpoint(self, snapshot, directory):
        super().write_checkpoint(snapshot, directory)
        return lambda: directory


class OddRollout(HashRollout):
    """Likewise."""

    def apply_weights(self, weights, version):
        super().apply_weights(weights, version)
        return lambda: version

    def drop_weights(self, version):
        super().drop_weights(version)
        return lambda: version


@pytest.mark.parametrize("pipeline", ["", "pipelined-boundary,async-checkpoint"])
def test_odd_methods_are_called_in_the_process_and_what_is_read_of_their_results_is_sent_back(
    workers, tmp_path, pipeline
):
    workers["trainer"].reset()
    made = steptrace.run(PROGRAM, workers, steps=3, target="process", pipeline=pipeline, out=tmp_path)
    assert digests(made) == digests(steptrace.run(PROGRAM, bind(), steps=3))
    assert workers["trainer"].calls.count("update") == 3
    assert workers["trainer"].colour == "blue"


def test_what_is_read_of_a_result_is_read_in_one_process_too():
    """A held update is made once, whether a mapping or an attribute tells that it is held."""
    made = steptrace.run(PROGRAM, bind(trainer=Odd()), steps=3, pipeline="pipelined-boundary")
    assert digests(made) == digests(steptrace.run(PROGRAM, bind(), steps=3))


@pytest.fixture(scope="module")
def workers():
    with hosted(bind(trainer=remote(Odd), rollout=remote(OddRollout))) as parts:
        yield parts


class Silent(Patient):
    """Cannot say what it is."""

    def info(self):
        raise LookupError("no info today")


class Locked(Patient):
    """Says what no process can send."""

    def info(self):
        return {"lock": lambda: None}


def test_a_part_that_cannot_say_what_it_is_is_named_with_its_line():
    with pytest.raises(LookupError, match="no info today") as caught:
        steptrace.run(PROGRAM, bind(remote(Silent)), steps=2, target="process")
    assert "`trainer`" in caught.value.__notes__[0]
    assert f"{__file__.rpartition('/')[2]}:" in caught.value.__notes__[1]


def test_a_part_that_says_what_cannot_be_sent_is_refused_with_its_line():
    with pytest.raises(UnpicklableError, match="of `info` cannot be sent back") as caught:
        steptrace.run(PROGRAM, bind(remote(Locked)), steps=2, target="process")
    assert caught.value.loc is not None
    assert caught.value.loc.file.endswith("test_odd_parts.py")
