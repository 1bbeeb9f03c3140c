"""Rules of the queue beyond order: open and sealed steps, holes under take-ahead, staleness, waits for a commit."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from made_groups import group

from steptrace.diag.data import QueueOrderError, StaleGroupError, TakeTimeoutError
from steptrace.lang.records import GroupId
from steptrace.run.data import GroupQueue, Ledger


def names(*prompts):
    return [GroupId(prompt, 0) for prompt in prompts]


def sampled(name, step=0, version=0):
    return replace(group(name, [5], [[6]], step=step), version=version)


def put_all(queue, step, *prompts, **how):
    queue.expect(step, names(*prompts))
    for name in prompts:
        queue.put(step, sampled(name, step), **how)


# Open and sealed steps.


def test_a_step_is_complete_when_it_is_sealed():
    queue = GroupQueue()
    queue.expect(0, names("a"), sealed=False)
    queue.put(0, sampled("a"))
    with pytest.raises(TakeTimeoutError, match="step 0 is not complete"):
        queue.take(0, timeout_s=0)
    queue.seal(0)
    assert len(queue.take(0, timeout_s=0)) == 1


def test_control_a_step_that_is_announced_whole_needs_no_seal():
    queue = GroupQueue()
    put_all(queue, 0, "a")
    assert len(queue.take(0, timeout_s=0)) == 1


def test_an_open_step_without_groups_is_no_hole_and_a_sealed_one_is():
    queue = GroupQueue(3)
    queue.expect(0, [], sealed=False)
    put_all(queue, 1, "b")
    with pytest.raises(QueueOrderError, match="step 1 is taken where step 0 is due"):
        queue.take(1, timeout_s=0)
    queue.seal(0)
    assert len(queue.take(1, timeout_s=0)) == 1


def test_a_hole_that_is_opened_again_is_served():
    queue = GroupQueue(2)
    queue.expect(0, [])
    queue.unseal(0)
    queue.expect(0, names("late"))
    queue.put(0, sampled("late"))
    assert [g.prompt.id for g in queue.take(0, timeout_s=0)] == ["late"]
    with pytest.raises(QueueOrderError, match="step 0 was taken"):
        queue.unseal(0)


# Counts.


def test_groups_given_up_before_the_step_was_announced_are_counted():
    queue = GroupQueue(2)
    queue.expect(0, names("a"), dropped=2)
    queue.put(0, sampled("a"))
    queue.expect(1, [], dropped=3)
    queue.take(0)
    queue.take(1)
    queue.commit(0)
    assert (queue.training_cursor, queue.ledger) == (2, Ledger(groups=1, dropped=5, holes=1))


# Holes under take-ahead.


def test_training_passes_each_hole_that_serving_has_read_past_and_none_beyond():
    queue = GroupQueue(6)
    put_all(queue, 0, "a")
    queue.expect(1, [])
    put_all(queue, 2, "c")
    queue.expect(3, [])
    queue.take(0)
    queue.take(2)  # ahead: reads past the hole of step 1, and not past that of step 3
    queue.commit(0)
    assert (queue.serving_cursor, queue.training_cursor) == (3, 2)
    queue.commit(2)
    assert (queue.serving_cursor, queue.training_cursor) == (3, 3)
    assert queue.take(3) == ()
    queue.commit(3)
    assert queue.ledger == Ledger(groups=2, holes=2)


def test_control_a_hole_that_serving_has_not_read_past_stays_in_front():
    queue = GroupQueue(3)
    put_all(queue, 0, "a")
    queue.expect(1, [])
    queue.take(0)
    queue.commit(0)
    assert queue.training_cursor == 1


# Staleness.


def test_admission_is_decided_by_the_version_at_put_time():
    queue = GroupQueue(2, max_staleness=1)
    queue.expect(0, names("fresh", "old"))
    queue.put(0, sampled("fresh", version=4), behind=lambda version: 5 - version)
    queue.put(0, sampled("old", version=3), behind=lambda version: 5 - version)
    assert [g.prompt.id for g in queue.take(0, timeout_s=0)] == ["fresh"]
    queue.commit(0)
    assert queue.ledger == Ledger(groups=1, dropped=1)


def test_what_is_published_after_the_put_does_not_undo_an_admission():
    queue = GroupQueue(2, max_staleness=1)
    queue.expect(0, names("a"))
    queue.put(0, sampled("a", version=4), behind=lambda version: 5 - version)
    assert "a" not in {name.prompt for name in queue.dropped(0)}
    assert len(queue.take(0, timeout_s=0)) == 1


def test_control_without_a_bound_all_are_admitted():
    queue = GroupQueue(2)
    put_all(queue, 0, "a", behind=lambda version: 99)
    assert len(queue.take(0, timeout_s=0)) == 1


def fast_producer():
    """Five steps of groups, all put while version 0 was the newest."""
    queue = GroupQueue(5, max_staleness=1)
    for step in range(5):
        put_all(queue, step, f"p{step}", behind=lambda version: 0 - version)
    return queue


def test_time_in_the_queue_counts_as_lag():
    """Step k is taken when version k is published: what waited longer than the bound is given up."""
    queue = fast_producer()
    taken = [len(queue.take(step, behind=lambda version, now=step: now - version)) for step in range(5)]
    assert taken == [1, 1, 0, 0, 0]


def test_control_lag_that_is_counted_at_the_put_only_lets_them_through():
    queue = fast_producer()
    assert [len(queue.take(step)) for step in range(5)] == [1, 1, 1, 1, 1]


def test_a_stale_group_that_was_trained_is_refused_at_its_commit():
    queue = fast_producer()
    for step in range(3):
        queue.take(step)
    for step in range(2):
        queue.commit(step, behind=lambda version, now=step: now - version)
    with pytest.raises(StaleGroupError, match=r"group .*p2.* of step 2 was sampled with version 0, 2 publications ago"):
        queue.commit(2, behind=lambda version: 2 - version)


# Waiting for a commit.


def test_a_held_batch_waits_for_the_commit_it_is_told_to_wait_for():
    queue = GroupQueue(2)
    put_all(queue, 0, "a")
    queue.take(0)
    seen = []
    waiter = threading.Thread(target=lambda: seen.append(queue.await_commit(0, lambda: False)))
    waiter.start()
    assert seen == []
    queue.commit(0)
    waiter.join(60)
    assert seen == [True]


def test_a_run_that_stops_ends_the_wait():
    assert GroupQueue().await_commit(0, lambda: True) is False
