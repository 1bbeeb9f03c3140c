"""Calls of a part in another process: values, arrays, keys, order, facts."""

from __future__ import annotations

import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import ml_dtypes
import numpy as np
import pytest
from worker_parts import Box, Jax

import steptrace
from steptrace.lang.records import GroupId, MicroBatch
from steptrace.workers import Worker, remote
from steptrace.workers.frames import Channel, Frame, Kind


@pytest.fixture(scope="module")
def box():
    worker = Worker.start(remote(Box, 5, step=2), name="box")
    yield worker
    worker.close()


@pytest.fixture(scope="module")
def device():
    worker = Worker.start(remote(Jax), name="device")
    yield worker
    worker.close()


def test_a_call_is_executed_in_another_process(box):
    assert box.call("getpid") == box.pid != os.getpid()


def test_state_stays_between_calls_and_attributes_are_read_after_them():
    worker = Worker.start(remote(Box, 5, step=2))
    assert [worker.call("add", 1), worker.call("add", number=10), worker.get("total")] == [7, 27, 27]
    worker.close()


def test_facts_tell_verbs_information_and_plain_attributes(box):
    facts = box.facts
    assert facts["verbs"] == {name for name in dir(Box) if not name.startswith("_") and callable(getattr(Box, name))}
    assert facts["pid"] == box.pid
    assert facts["attrs"] == {"size": 3, "label": "box", "total": 5, "step": 2}
    assert facts["info"] == {"capabilities": ["add"], "jax": False}


def test_a_part_without_jax_gets_jax_arrays_and_loads_no_jax(box):
    sent = jax.numpy.arange(40_000, dtype="float32")
    back = box.call("echo", {"weights": [sent, sent[:3]]})["weights"]
    assert [type(array) for array in back] == [np.ndarray, np.ndarray]
    assert [array.dtype.name for array in back] == ["float32", "float32"]
    assert np.array_equal(back[0], np.asarray(sent))
    assert np.array_equal(back[1], [0, 1, 2])
    assert box.call("loaded_jax") is False


ARRAYS = {
    "small": np.arange(6, dtype=np.int32).reshape(2, 3),
    "large": np.random.default_rng(0).normal(size=(300, 200)),
    "fortran": np.asfortranarray(np.arange(40_000.0).reshape(200, 200)),
    "strided": np.arange(80_000.0).reshape(200, 400)[:, ::2],
    "bfloat16": np.arange(90_000, dtype=np.float32).astype(ml_dtypes.bfloat16).reshape(300, 300),
    "empty": np.zeros((0, 4), np.float32),
    "scalar": np.array(3.5),
    "truth": np.arange(100_000) % 3 == 0,
    "words": np.array(["a", "bc"]),
    "records": np.zeros(3, [("a", "i4"), ("b", "f8")]),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_comes_back_bit_for_bit(box, name: str):
    sent = ARRAYS[name]
    back = box.call("echo", sent)
    assert (back.dtype, back.shape) == (sent.dtype, sent.shape)
    assert back.tobytes() == sent.tobytes()
    assert back.flags.writeable


def test_an_array_of_objects_travels_like_a_list(box):
    sent = np.array([{"a": 1}, None, np.ones(3)], dtype=object)
    back = box.call("echo", sent)
    assert back.dtype == object
    assert back[:2].tolist() == [{"a": 1}, None]
    assert np.array_equal(back[2], np.ones(3))


def test_arrays_inside_frozen_records_arrive(box):
    arrays = {"tokens": np.arange(20_000, dtype=np.int32).reshape(100, 200), "loss_mask": np.ones((2, 3), np.float32)}
    sent = MicroBatch(3, 1, arrays, keys=(((GroupId("p", 0), 2),),), last=True)
    back = box.call("echo", sent)
    assert (back.step, back.index, back.keys, back.last) == (3, 1, sent.keys, True)
    assert all(np.array_equal(back.arrays[name], arrays[name]) for name in arrays)


def test_a_frame_holds_more_buffers_than_sixteen_bits_count():
    ours, theirs = socket.socketpair()
    small = [bytes([index % 251]) * (index % 4) for index in range(70_000)]
    frame = Frame(Kind.CALL, 1, body=b"body", small=small, spans=[(0, len(buffer)) for buffer in small])
    with ours, theirs, ThreadPoolExecutor(1) as pool:
        sent = pool.submit(Channel(ours).send, frame)
        back = Channel(theirs).receive()
        sent.result()
    assert bytes(back.body) == b"body"
    assert [bytes(buffer) for buffer in back.small] == small


def test_thousands_of_small_arrays_arrive(box):
    sent = [np.full(index % 7, index) for index in range(3000)]
    back = box.call("echo", sent)
    assert len(back) == 3000
    assert all(np.array_equal(one, other) for one, other in zip(sent, back, strict=True))


def test_keys_go_both_ways(device):
    key = jax.random.key(7)
    drawn, split = device.call("draw", key)
    assert np.array_equal(drawn, np.asarray(jax.random.normal(key, (3,))))
    assert split.dtype == key.dtype
    assert np.array_equal(jax.random.key_data(split), jax.random.key_data(jax.random.split(key)[0]))


@pytest.mark.slow
def test_keys_keep_their_generator(device):
    key = jax.random.key(7, impl="rbg")
    drawn, split = device.call("draw", key)
    assert str(jax.random.key_impl(split)) == "rbg"
    assert np.array_equal(drawn, np.asarray(jax.random.normal(key, (3,))))


def test_what_was_sent_may_be_overwritten_at_once():
    worker = Worker.start(remote(Box))
    for size in (10, 1_000_000):
        array = np.ones(size)
        worker.call("nap", 0)
        busy = worker.send("nap", 0.05)
        pending = worker.send("keep", array)
        array[:] = 7
        busy.result()
        pending.result()
        assert worker.call("kept_sum") == size
    worker.close()


def test_arrays_arrive_while_the_worker_computes(box):
    nap = box.send("nap", 0.5)
    pending = box.send("writable", np.zeros(1_000_000))
    assert pending.sent(timeout=30)
    assert not nap.done()
    assert pending.result() is True


def test_calls_of_many_threads_each_get_their_answer(box):
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda number: box.call("echo", number, np.full(20_000, number))[0][1][0], range(100)))
    assert answers == list(range(100))


def test_calls_run_in_the_order_in_which_they_were_sent():
    worker = Worker.start(remote(Box, step=1))
    pendings = [worker.send("echo", [worker.send("add", 1) and index]) for index in range(50)]
    assert [pending.result() for pending in pendings] == [[index] for index in range(50)]
    assert worker.get("total") == 50
    worker.close()


def test_the_environment_and_the_search_path_are_the_drivers(box, monkeypatch):
    monkeypatch.setenv("STEPTRACE_TEST_WORD", "here")
    worker = Worker.start(remote(Box))
    assert worker.call("environment", "STEPTRACE_TEST_WORD") == "here"
    worker.close()
    assert box.call("environment", "STEPTRACE_TEST_WORD") is None


@pytest.mark.slow
def test_settings_of_jax_go_along(device):
    name, before = "jax_enable_x64", jax.config.values["jax_enable_x64"]
    assert device.call("settings", name) is before is False
    jax.config.update(name, True)
    try:
        worker = Worker.start(remote(Jax))
        assert worker.call("settings", name) is True
        worker.close()
    finally:
        jax.config.update(name, before)


def test_output_goes_to_a_file_of_the_run(tmp_path):
    worker = Worker.start(remote(print, "said", file=None), name="speaker", run_dir=tmp_path)
    worker.close()
    assert (tmp_path / "workers" / "speaker.log").read_text() == "said\n"


def test_a_part_is_built_here_where_no_worker_is_wanted():
    part = steptrace.remote(Box, 5, step=2).build()
    assert part.add(1) == 7


def test_two_workers_start_at_a_time():
    waiting = [Worker.spawn(remote(time.sleep, 0), name=f"w{index}") for index in range(2)]
    pids = [worker.ready().facts["pid"] for worker in waiting]
    for worker in waiting:
        worker.close()
    assert len(set(pids)) == 2
