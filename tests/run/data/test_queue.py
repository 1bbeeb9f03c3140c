import json
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_groups import group

from steptrace.diag.data import (
    DataStateError,
    GroupCollisionError,
    IncompleteGroupError,
    ProducerFailedError,
    QueueClosedError,
    QueueFullError,
    QueueOrderError,
    TakeTimeoutError,
    UnexpectedGroupError,
)
from steptrace.lang.records import GroupId
from steptrace.run.data import GroupQueue, Ledger, Packer


def made(name, step=0, draw=0, samples=1):
    return group(name, [5], [[6]] * samples, draw=draw, step=step, advantages=[1.0] * samples)


def names(*prompts, draw=0):
    return [GroupId(prompt, draw) for prompt in prompts]


def filled(capacity, *steps):
    """A queue with the given steps delivered; an empty one is a hole."""
    queue = GroupQueue(capacity)
    for step, prompts in enumerate(steps):
        queue.expect(step, names(*prompts, draw=step))
        for prompt in prompts:
            queue.put(step, made(prompt, step, draw=step))
    return queue


def prompts_of(groups):
    return None if groups is None else [g.prompt.id for g in groups]


@given(st.permutations(["a", "b", "a:0", "b:", ":"]))
def test_groups_come_out_in_dispatch_order_whatever_order_they_came_in(arrival):
    ids = ["a", "b", "a:0", "b:", ":"]
    queue = GroupQueue()
    queue.expect(0, names(*ids))
    for prompt in arrival:
        queue.put(0, made(prompt))
    taken = queue.take(0, timeout_s=0)
    assert prompts_of(taken) == ids
    in_order = Packer(rows=2, length=4).pack([made(prompt) for prompt in ids], step=0)
    assert [mb.keys for mb in Packer(rows=2, length=4).pack(taken, step=0)] == [mb.keys for mb in in_order]


def test_control_arrival_order_is_another_packing():
    packer = Packer(rows=2, length=4)
    a_first = packer.pack([made("a"), made("b")], step=0)
    b_first = packer.pack([made("b"), made("a")], step=0)
    assert [mb.keys for mb in a_first] != [mb.keys for mb in b_first]


def test_one_prompt_drawn_twice_in_flight_stays_two_groups():
    queue = GroupQueue(2)
    queue.expect(0, [GroupId("p:1", 0)])
    queue.expect(1, [GroupId("p:1", 1), GroupId("p", 1)])
    for step, prompt, draw in [(1, "p", 1), (1, "p:1", 1), (0, "p:1", 0)]:
        queue.put(step, made(prompt, step, draw))
    assert [g.id for g in queue.take(0)] == [GroupId("p:1", 0)]
    assert [g.id for g in queue.take(1)] == [GroupId("p:1", 1), GroupId("p", 1)]


def test_colliding_ids_are_refused():
    queue = GroupQueue(2)
    with pytest.raises(GroupCollisionError):
        queue.expect(0, names("a", "a"))
    queue = GroupQueue(2)
    queue.expect(0, names("a"))
    with pytest.raises(GroupCollisionError, match="of step 1 is already a group of step 0"):
        queue.expect(1, names("a"))


def test_a_group_delivered_twice_is_refused():
    queue = filled(1, ["a"])
    with pytest.raises(GroupCollisionError, match="delivered before"):
        queue.put(0, made("a"))


@pytest.mark.parametrize(
    "deliver",
    [
        lambda queue: queue.put(0, made("b")),
        lambda queue: queue.put(1, made("a", step=1)),
        lambda queue: queue.put(0, made("a", step=1)),
        lambda queue: queue.drop(0, GroupId("b", 0), "lost"),
    ],
)
def test_a_group_nobody_waits_for_is_refused(deliver):
    queue = GroupQueue()
    queue.expect(0, names("a"))
    with pytest.raises(UnexpectedGroupError):
        deliver(queue)


def test_a_dropped_group_closes_its_step_and_comes_no_more():
    queue = GroupQueue()
    queue.expect(0, names("a", "b", "c"))
    queue.put(0, made("c"))
    queue.put(0, made("a"))
    queue.drop(0, GroupId("b", 0), "the prompt is too long")
    with pytest.raises(UnexpectedGroupError, match="dropped before: the prompt is too long"):
        queue.put(0, made("b"))
    assert prompts_of(queue.take(0, timeout_s=0)) == ["a", "c"]
    assert queue.dropped(0) == {GroupId("b", 0): "the prompt is too long"}
    assert queue.commit(0) == (GroupId("a", 0), GroupId("c", 0))
    assert queue.ledger == Ledger(groups=2, dropped=1)


def test_control_without_the_drop_the_step_stays_open():
    queue = GroupQueue(2)
    queue.expect(0, names("a", "b:2", "c"))
    queue.expect(1, names("d"))
    queue.put(0, made("a"))
    queue.put(0, made("c"))
    with pytest.raises(TakeTimeoutError) as caught:
        queue.take(0, timeout_s=0.01)
    assert str(caught.value).splitlines() == [
        "error[ST433]: step 0 is not complete after 0.01 s: 1 groups missing",
        "    step 0 waits for GroupId(prompt='b:2', draw=0)",
        "    step 1 waits for GroupId(prompt='d', draw=0)",
    ]


def test_a_replacement_takes_the_place_of_a_dropped_group():
    queue = GroupQueue()
    queue.expect(0, names("a", "b", "c"))
    queue.drop(0, GroupId("b", 0), "empty", replacement=GroupId("z", 0))
    for prompt in "zca":
        queue.put(0, made(prompt))
    assert prompts_of(queue.take(0, timeout_s=0)) == ["a", "z", "c"]


def test_a_step_can_be_announced_in_parts_until_it_is_taken():
    queue = GroupQueue()
    queue.expect(0, names("a"))
    queue.expect(0, names("b"))
    queue.put(0, made("b"))
    queue.put(0, made("a"))
    assert prompts_of(queue.take(0, timeout_s=0)) == ["a", "b"]
    with pytest.raises(QueueOrderError):
        queue.expect(0, names("c"))


def test_the_end_of_the_data_is_an_answer():
    queue = filled(3, ["a", "b"], ["c"])
    queue.close()
    assert [prompts_of(queue.take(step, timeout_s=0)) for step in range(3)] == [["a", "b"], ["c"], None]
    with pytest.raises(QueueClosedError):
        queue.expect(2, names("d"))


def test_control_without_the_end_the_consumer_gives_up_at_its_deadline():
    queue = filled(3, ["a"])
    queue.take(0)
    with pytest.raises(TakeTimeoutError, match="never dispatched"):
        queue.take(1, timeout_s=0.01)


def test_close_wakes_a_waiting_consumer():
    queue, answers = GroupQueue(), []
    waiter = threading.Thread(target=lambda: answers.append(queue.take(0, timeout_s=60)))
    waiter.start()
    queue.close()
    waiter.join(60)
    assert answers == [None]


def test_a_failed_producer_is_reported_to_whoever_waits():
    queue = GroupQueue()
    queue.expect(0, names("a"))
    queue.fail(RuntimeError("worker died"))
    with pytest.raises(ProducerFailedError, match="RuntimeError: worker died") as caught:
        queue.take(0, timeout_s=60)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_a_hole_is_passed_over_and_released_with_the_step_before_it():
    queue = filled(4, ["a"], [], [], ["b"])
    assert prompts_of(queue.take(0)) == ["a"]
    assert prompts_of(queue.take(3)) == ["b"]  # serving passes both holes before training has reached them
    assert (queue.serving_cursor, queue.training_cursor) == (4, 0)
    queue.commit(0)
    assert queue.training_cursor == 3
    queue.commit(3)
    assert (queue.training_cursor, queue.ledger) == (4, Ledger(groups=2, holes=2))


def test_a_hole_may_be_taken_and_committed_like_any_step():
    queue = filled(3, ["a"], [], ["b"])
    for step in range(3):
        queue.take(step)
    assert [queue.commit(step) for step in range(3)] == [(GroupId("a", 0),), (), (GroupId("b", 2),)]
    assert queue.ledger == Ledger(groups=2, holes=1)


def test_a_step_all_of_whose_groups_were_dropped_is_a_hole():
    queue = GroupQueue()
    queue.expect(0, names("a"))
    queue.drop(0, GroupId("a", 0), "refused")
    assert queue.take(0, timeout_s=0) == ()
    queue.commit(0)
    assert queue.ledger == Ledger(dropped=1, holes=1)


def test_control_a_step_with_groups_is_not_passed_over():
    queue = filled(2, ["a"], ["b"])
    with pytest.raises(QueueOrderError, match="step 1 is taken where step 0 is due"):
        queue.take(1)


def test_order_of_steps_is_kept():
    queue = filled(3, ["a"], ["b"])
    with pytest.raises(QueueOrderError):
        queue.expect(3, names("d"))
    with pytest.raises(QueueOrderError):
        queue.commit(0)
    queue.take(0)
    with pytest.raises(QueueOrderError):
        queue.take(0)
    queue.take(1)
    with pytest.raises(QueueOrderError):
        queue.commit(1)


def test_capacity_is_a_bound_in_uncommitted_steps():
    queue = filled(1, ["a"])
    with pytest.raises(QueueFullError, match="the queue holds 1"):
        queue.expect(1, names("b"))
    queue.take(0)
    queue.commit(0)
    queue.expect(1, names("b"))


def test_a_producer_can_wait_for_room():
    queue = filled(1, ["a"])
    producer = threading.Thread(target=lambda: queue.expect(1, names("b"), timeout_s=60))
    producer.start()
    queue.take(0)
    queue.commit(0)
    producer.join(60)
    assert not producer.is_alive()
    queue.put(1, made("b", step=1))
    assert prompts_of(queue.take(1, timeout_s=0)) == ["b"]


def test_many_producers_one_consumer():
    steps, width = 20, 8
    queue = GroupQueue(3)
    taken = []

    def produce(worker):
        for step in range(steps):
            announced[step].wait(60)
            for number in range(worker, width, 2):
                queue.put(step, made(str(number), step, draw=step))

    def dispatch():
        for step in range(steps):
            queue.expect(step, names(*map(str, range(width)), draw=step), timeout_s=60)
            announced[step].set()
        queue.close()

    announced = [threading.Event() for _ in range(steps)]
    threads = [threading.Thread(target=produce, args=(worker,)) for worker in range(2)]
    threads.append(threading.Thread(target=dispatch))
    for thread in threads:
        thread.start()
    step = 0
    while (groups := queue.take(step, timeout_s=60)) is not None:
        taken.append(prompts_of(groups))
        queue.commit(step)
        step += 1
    for thread in threads:
        thread.join(60)
    assert taken == [[str(number) for number in range(width)]] * steps


@pytest.mark.parametrize(
    ("policy", "samples", "kept"), [("drop", 3, []), ("shrink", 3, ["a"]), ("refuse", 4, ["a"]), ("drop", 0, [])]
)
def test_incomplete_groups_follow_the_declared_policy(policy, samples, kept):
    queue = GroupQueue(samples=4, incomplete=policy)
    queue.expect(0, names("a"))
    queue.put(0, made("a", samples=samples))
    assert prompts_of(queue.take(0, timeout_s=0)) == kept


@pytest.mark.parametrize(("policy", "samples"), [("refuse", 3), ("shrink", 0), ("shrink", 5), ("drop", 5)])
def test_groups_of_a_wrong_size_are_refused(policy, samples):
    queue = GroupQueue(samples=4, incomplete=policy)
    queue.expect(0, names("a"))
    with pytest.raises(IncompleteGroupError, match=f"has {samples} samples, and 4 are due"):
        queue.put(0, made("a", samples=samples))


def test_restored_queue_takes_uncommitted_groups_again():
    queue = filled(3, ["a", "b"], ["c"])
    queue.take(0)
    queue.commit(0)
    queue.take(1)  # ahead: not committed, so not in the state
    state = json.loads(json.dumps(queue.state()))
    assert state == {"training_cursor": 1, "groups": 2, "dropped": 0, "holes": 0}
    again = GroupQueue(3)
    again.restore(state)
    again.expect(1, names("c", draw=1))
    again.put(1, made("c", 1, draw=1))
    assert prompts_of(again.take(1)) == ["c"]
    again.commit(1)
    assert again.state() == {"training_cursor": 2, "groups": 3, "dropped": 0, "holes": 0}


@pytest.mark.parametrize("state", [{}, {"training_cursor": -1, "groups": 0, "dropped": 0, "holes": 0}])
def test_a_bad_state_is_refused(state):
    with pytest.raises(DataStateError):
        GroupQueue().restore(state)
