"""Buffers that a worker reads in place: what is overwritten too early is seen, what is released in order is not."""

from __future__ import annotations

import gc
import os

import numpy as np
import pytest
from worker_parts import Box, Jax

from steptrace.diag.workers import BufferHeldError, BuffersLentError, WorkerLostError
from steptrace.workers import Worker, remote
from steptrace.workers.client import LENT
from steptrace.workers.rooms import ALIGNMENT, Rooms
from steptrace.workers.shared import BULK, Arena

SIZE = 300_000
"""Numbers of an array that is large enough for a segment, and for JAX to take it as it is."""


@pytest.fixture
def box():
    worker = Worker.start(remote(Box), name="box", slots=2)
    yield worker
    worker.kill()


@pytest.fixture(scope="module")
def device():
    worker = Worker.start(remote(Jax), name="device", slots=2)
    yield worker
    worker.close()


def overwrite(worker: Worker, value: float) -> int:
    """Write over every segment that is lent, as a ring without an order of release would; how many there were."""
    slots = [slot for slot in worker._arenas[LENT]._slots if slot.busy()]
    for slot in slots:
        np.frombuffer(slot.map, np.float32)[ALIGNMENT // 4 :] = value
    return len(slots)


def test_control_jax_computes_on_the_lent_memory_itself(device):
    pending = device.send("put", np.ones(SIZE, np.float32), lend=True)
    pending.result()
    assert device.call("read") == SIZE
    assert overwrite(device, 3) == 1
    assert device.call("read") == 3 * SIZE  # the driver changed an array on the device
    device.call("drop")
    pending.buffers.release()


def test_a_buffer_that_jax_holds_is_not_given_back(device):
    pending = device.send("put", np.ones(SIZE, np.float32), lend=True)
    pending.result()
    with pytest.raises(BufferHeldError, match=r"worker `device` .* `put`, request \d+, are still held .* 0.1 s after"):
        pending.buffers.release(timeout=0.1)
    assert not pending.buffers.released()
    for value in range(4):  # they go through the other slot of the ring
        other = device.send("kind", np.full(SIZE, value, np.float32), lend=True)
        other.buffers.release()
    assert device.call("read") == SIZE
    device.call("drop")
    pending.buffers.release()
    assert pending.buffers.released()


@pytest.mark.parametrize("way", ["use", "use_compiled"])
def test_a_released_buffer_was_read_to_the_end(device, way: str):
    for _ in range(2):
        pending = device.send(way, np.ones(SIZE, np.float32), lend=True)
        pending.result()  # the computation that reads it was dispatched, and is not done
        pending.buffers.release()
        assert overwrite(device, 9) == 0
        rewrite_free(device, 9)
        assert device.call("read") == 2 * SIZE


def test_control_a_buffer_overwritten_before_its_release_changes_what_is_computed(device):
    pending = device.send("use", np.ones(SIZE, np.float32), lend=True)
    pending.result()
    assert overwrite(device, 9) == 1
    assert device.call("read") == 10 * SIZE
    pending.buffers.release()


def rewrite_free(worker: Worker, value: float) -> None:
    for slot in worker._arenas[LENT]._slots:
        if slot.map is not None and not slot.busy():
            np.frombuffer(slot.map, np.float32)[ALIGNMENT // 4 :] = value


def test_a_recycled_ring_trains_on_what_was_sent(device):
    seen = []
    for value in range(6):
        pending = device.send("put", np.full(SIZE, value, np.float32), lend=True)
        seen.append(device.send("read"))
        device.send("drop")
        pending.buffers.release(wait=False)
    assert [pending.result() for pending in seen] == [value * SIZE for value in range(6)]


def test_copied_arrays_may_be_kept_and_written(box):
    box.call("keep", np.ones(SIZE))
    for value in range(6):
        box.call("writable", np.full(SIZE, value, np.float64))
    assert box.call("kept_sum") == SIZE
    assert box.call("writable", np.ones(SIZE)) is True


def test_copied_arrays_on_the_device_are_not_written_again(device):
    for way in ("put", "use", "use_compiled"):
        device.send(way, np.ones(SIZE, np.float32))
        for value in range(2, 8):
            device.send("kind", np.full(SIZE, value, np.float32))
        assert device.call("read") == (1 if way == "put" else 2) * SIZE


@pytest.mark.slow
def test_control_memory_that_is_used_again_too_early_changes_what_is_on_the_device():
    worker = Worker.start(remote(Jax))
    worker.call("reuse_memory_blindly")
    worker.call("put", np.ones(SIZE, np.float32))
    worker.call("kind", np.full(SIZE, 5, np.float32))
    assert worker.call("read") == 5 * SIZE
    worker.close()


def test_arrays_that_are_left_to_old_garbage_are_given_back(box):
    pending = box.send("let_go_late", np.ones(SIZE), lend=True)
    assert pending.result() == 2
    pending.buffers.release()
    assert pending.buffers.released()


def test_lent_arrays_are_read_only_and_small_ones_are_copied(box):
    pending = box.send("writable", np.ones(SIZE), lend=True)
    assert pending.result() is False
    pending.buffers.release()
    small = box.send("writable", np.ones(3), lend=True)
    assert small.result() is True
    assert small.buffers.released()


def test_a_ring_that_is_lent_out_refuses_after_its_patience(box):
    box._arenas[LENT].patience = 0.05
    held = [box.send("keep", np.full(SIZE, value, np.float64), lend=True) for value in (1, 2)]
    with pytest.raises(BuffersLentError) as caught:
        box.send("keep", np.ones(SIZE), lend=True)
    assert "all 2 are in use, by `keep` (request 1), `keep` (request 2)" in caught.value.message
    box.call("writable", np.ones(SIZE))  # copies go another way
    assert box.call("kept_sum") == 2 * SIZE
    held[0].buffers.release()
    third = box.send("keep", np.full(SIZE, 3, np.float64), lend=True)
    assert box.call("kept_sum") == 3 * SIZE
    held[1].buffers.release()
    box.call("forget")
    third.buffers.release()


def test_a_ring_waits_for_a_buffer_that_comes_back(box):
    held = [box.send("keep", np.ones(SIZE), lend=True) for _ in range(2)]
    box.call("forget")
    for pending in held:
        pending.buffers.release(wait=False)
    box.send("writable", np.ones(SIZE), lend=True).buffers.release()


def test_a_release_that_is_lost_is_asked_for_again(box):
    pending = box.send("keep", np.ones(SIZE), lend=True)
    pending.result()
    box._link._channel.drop()
    pending.buffers.release(wait=False)
    box.call("forget")
    pending.buffers.release()
    assert box.calls_executed == 2


def test_a_release_of_a_worker_that_is_lost_says_so(box):
    pending = box.send("keep", np.ones(SIZE), lend=True)
    with pytest.raises(WorkerLostError):
        box.call("die")
    with pytest.raises(WorkerLostError):
        pending.buffers.release()


def test_arrays_of_a_call_that_failed_are_let_go(box):
    pending = box.send("add", np.ones(SIZE), 3, lend=True)
    with pytest.raises(TypeError):
        pending.result()
    pending.buffers.release()


def test_a_slot_grows_and_its_older_segment_is_given_back():
    arena = Arena(1, 1)
    first = arena.take(BULK, "a")
    first.free()
    inode = os.fstat(first.fd).st_ino
    second = arena.take(3 * BULK, "b")
    assert second is first
    assert len(second.map) == 4 * BULK
    assert arena.busy() == 1
    assert os.fstat(second.fd).st_ino != inode
    descriptor = second.fd
    arena.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_memory_is_used_again_once_no_array_lies_on_it():
    rooms = Rooms()
    first = rooms.take(1000)
    first[:] = 1
    view = np.frombuffer(first.data, np.uint8)
    place = first.ctypes.data
    assert place % ALIGNMENT == 0
    del first
    assert rooms.take(1000).ctypes.data != place
    assert view.sum() == 1000
    del view
    gc.collect()
    assert rooms.take(1000).ctypes.data == place
