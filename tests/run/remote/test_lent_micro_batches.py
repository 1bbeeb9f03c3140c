"""Micro-batches in shared memory that workers read in place: given back in order, they train what copies do."""

from __future__ import annotations

import pytest
from remote_parts import PIPES, bind, digests, shared_workers

import steptrace
from steptrace.diag.workers import BuffersLentError
from steptrace.run.data.packing import Packer
from steptrace.run.remote.loans import Loans
from steptrace.run.remote.part import line_of
from steptrace.workers.client import LENT

PROGRAM = 'grpo{prompts=4, samples=3, staleness=1, saves="may_fail_late"}'
RING = "release-buffers{ring=3}"
STEPS = 4


@pytest.fixture(autouse=True)
def small_arrays_go_through_segments_too(monkeypatch):
    monkeypatch.setattr("steptrace.workers.shared.BULK", 1)


@pytest.fixture(scope="module")
def workers():
    with shared_workers() as parts:
        yield parts


def many(bound):
    """The parts, with steps of many micro-batches."""
    return bound | {"packer": Packer(rows=1, length=20, pad_id=0)}


def run(bound, **options):
    return steptrace.run(PROGRAM, many(bound), **({"steps": STEPS, "stall_s": 60.0} | options))


def hosted_run(workers, **options):
    workers["trainer"].reset()
    return run(workers, target="process", **options)


@pytest.fixture
def shipped(monkeypatch):
    """How many calls had their micro-batches read in place, and the most that were at a time."""
    noted, open_ = [], set()
    note, give_back = Loans.note, Loans.give_back

    def counting(self, args, pending):
        note(self, args, pending)
        open_.add(pending)
        noted.append(len(open_))

    def counting_back(self, micro_batch, wait_s):
        own = self._open.get((micro_batch.step, micro_batch.index), [])
        give_back(self, micro_batch, wait_s)
        open_.difference_update(own)

    monkeypatch.setattr(Loans, "note", counting)
    monkeypatch.setattr(Loans, "give_back", counting_back)
    return noted, open_


@pytest.mark.parametrize(
    "pipeline", [RING, f"{RING},{PIPES[0]}", pytest.param(f"{PIPES[3]},release-buffers", marks=pytest.mark.slow)]
)
def test_a_ring_of_lent_buffers_trains_what_copies_train(workers, shipped, pipeline):
    made = hosted_run(workers, pipeline=pipeline)
    assert digests(made) == digests(run(bind()))
    noted, still_open = shipped
    assert len(noted) > 4 * STEPS
    assert still_open == set()
    for part in ("trainer", "reference"):
        assert line_of(workers[part]).worker._arenas[LENT].busy() == 0


def test_control_without_releases_nothing_is_lent(workers, shipped):
    assert digests(hosted_run(workers, pipeline=PIPES[0])) == digests(run(bind()))
    assert shipped == ([], set())


def at_issue(monkeypatch):
    """A lowering that gives a buffer back when the call that reads it has been made, not when that is done."""

    def note(self, args, pending):
        pending.buffers._slot.free()

    monkeypatch.setattr(Loans, "note", note)


def test_control_buffers_given_back_at_issue_train_other_parameters(workers, monkeypatch):
    expected = run(bind(), steps=1)
    assert digests(hosted_run(workers, steps=1, pipeline=RING)) == digests(expected)
    at_issue(monkeypatch)
    early = hosted_run(workers, steps=1, pipeline=RING)
    assert (early.calls_digest, early.trained_groups_digest) == (expected.calls_digest, expected.trained_groups_digest)
    assert early.params_digest != expected.params_digest


def test_control_buffers_that_nobody_gives_back_are_missed(workers, monkeypatch):
    monkeypatch.setattr(Loans, "give_back", lambda self, micro_batch, wait_s: None)
    for part in ("trainer", "reference"):
        monkeypatch.setattr(line_of(workers[part]).worker._arenas[LENT], "patience", 0.2)
    with pytest.raises(BuffersLentError, match="all 4 are in use"):
        hosted_run(workers, pipeline=RING)
    monkeypatch.undo()
    monkeypatch.setattr("steptrace.workers.shared.BULK", 1)
    assert digests(hosted_run(workers, pipeline=RING)) == digests(run(bind()))  # the next run finds them free
