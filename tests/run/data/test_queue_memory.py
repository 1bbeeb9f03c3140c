"""The queue holds what is not committed, however long the run; one that is not committed is refused, not held."""

from __future__ import annotations

import gc
import sys

import pytest
from made_groups import group

from steptrace.diag.data import QueueFullError
from steptrace.lang.records import Group, GroupId
from steptrace.run.data import GroupQueue


def step_of(queue, step, ahead=0):
    """Announce and fill a step, and take and commit the one ``ahead`` steps before it; some groups are dropped."""
    names = [GroupId("a", step), GroupId("b", step), GroupId("c", step)]
    queue.expect(step, names if step % 7 else [])
    if step % 7:
        queue.put(step, group("a", [5], [[6]], draw=step, step=step))
        queue.put(step, group("b", [5], [[6]], draw=step, step=step), behind=lambda version: step % 3)
        queue.drop(step, names[2], "lost")
    if step >= ahead:
        queue.take(step - ahead)
        queue.commit(step - ahead)


def blocks_at(queue, steps, *, ahead=0, keep=None):
    """Blocks of memory after a quarter and after all of the steps."""
    counts = []
    for step in range(steps):
        step_of(queue, step, ahead)
        if keep is not None:
            keep.append(queue.ledger)
        if step in (steps // 4, steps - 1):
            gc.collect()
            counts.append(sys.getallocatedblocks())
    return counts


def groups_alive():
    """Identities of all groups."""
    gc.collect()
    return {id(thing) for thing in gc.get_objects() if isinstance(thing, Group)}


@pytest.mark.parametrize("ahead", [0, 2])
def test_live_objects_stay_flat_over_ten_thousand_steps(ahead):
    queue = GroupQueue(ahead + 1, max_staleness=1)
    before = groups_alive()  # those of other tests' parameters
    quarter, end = blocks_at(queue, 10_000, ahead=ahead)
    assert end - quarter < 200
    assert queue.training_cursor == 10_000 - ahead
    assert len(groups_alive() - before) <= 2 * ahead


def test_control_something_that_keeps_a_record_of_each_step_is_seen():
    quarter, end = blocks_at(GroupQueue(1, max_staleness=1), 2_000, keep=[])
    assert end - quarter > 1_000


def test_a_producer_that_runs_away_is_stopped_by_the_capacity():
    queue = GroupQueue(4)
    for step in range(4):
        queue.expect(step, [GroupId("a", step)])
    with pytest.raises(QueueFullError, match="step 4 cannot be dispatched: steps 0 to 3 are not committed"):
        queue.expect(4, [GroupId("a", 4)])


def test_control_without_a_bound_it_goes_on():
    queue = GroupQueue(10_000)
    for step in range(1_000):
        queue.expect(step, [GroupId("a", step)])
    assert queue.training_cursor == 0
