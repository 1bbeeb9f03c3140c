"""Recording a run: every instance on its lane, every wait explained, work in order, memory bounded, nothing changed."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter

import jax
import jax.numpy as jnp
import pytest
from fakes import HashTrainer, parts

import steptrace
from steptrace.diag.base import SteptraceError
from steptrace.ir import Op
from steptrace.lang.records import Prompt
from steptrace.run.data.prompts import ListPrompts
from steptrace.run.record import Recorder
from steptrace.run.watch import Sent, Watcher
from steptrace.timeline import problems, read_events

PROGRAM = "grpo{staleness=1, prompts=4, samples=2}"


class TokenTrainer(HashTrainer):
    """Offers what is ready once its last call, and its last update, is done."""

    def __init__(self) -> None:
        super().__init__()
        self.last_call_token = None
        self.last_update_token = jnp.zeros(())

    def fwd_bwd(self, micro_batch) -> None:
        super().fwd_bwd(micro_batch)
        self.last_call_token = jnp.zeros(())

    def update(self) -> None:
        super().update()
        self.last_update_token = jnp.zeros(())


def recorded(pipeline: str = "", recorder: Recorder | None = None, steps: int = 4, **other):
    recorder = recorder or Recorder()
    run = steptrace.run(
        PROGRAM, parts(**other), steps=steps, pipeline=pipeline, stage_latch_s=0, around=[recorder.around]
    )
    return run, recorder.recording(pipeline=pipeline)


@pytest.mark.parametrize("pipeline", ["", "pipelined-boundary"])
def test_every_instance_is_kept_on_its_lane_and_nothing_changes(pipeline: str):
    plain = steptrace.run(PROGRAM, parts(), steps=4, pipeline=pipeline, stage_latch_s=0)
    run, recording = recorded(pipeline)
    assert (run.params_digest, run.calls_digest) == (plain.params_digest, plain.calls_digest)
    assert problems(recording) == []
    assert (recording.origin, recording.program, recording.pipeline, recording.dropped) == (
        "measured", "grpo", pipeline, 0,
    )  # fmt: skip
    counts = Counter((event.kind, event.step) for event in recording.events)
    assert [counts["commit", step] for step in range(5)] == [1, 1, 1, 1, 0]
    assert counts["sync_weights", -1] == 1
    trained = {(e.step, e.micro) for e in recording.events if e.kind.startswith("fwd_bwd")}
    assert trained == {(step, micro) for step in range(4) for micro in range(len(trained) // 4)}
    assert set(recording.lanes()) == ({"host", "packer"} if pipeline else {"host"})
    assert all(recording.lines[event.op].place.startswith("steptrace/programs/grpo.py:") for event in recording.events)


def test_an_op_that_was_held_up_says_by_what():
    _, recording = recorded("pipelined-boundary", steps=6, reward=slow_reward)
    held = [event for event in recording.events if event.held_s > 0]
    assert held
    arrows = {arrow.target: arrow for arrow in recording.arrows if arrow.kind == "lane"}
    for at, event in enumerate(recording.events):
        assert (at in arrows) == (event.held_s > 0) == bool(event.held_by)
        if at in arrows:
            before = recording.events[arrows[at].source]
            assert before.op == event.held_by
            assert before.lane != event.lane


def slow_reward(prompt, completions):
    time.sleep(0.002)
    return [float(len(text)) for text in completions]


def test_only_the_newest_are_kept_and_the_others_counted():
    _, recording = recorded(recorder=Recorder(limit=8))
    assert len(recording.events) == 8
    assert recording.dropped > 40
    assert recording.events[-1].op == "free"
    assert recording.events[-1].step == 3


def test_a_call_that_fails_is_kept_too():
    def failing(prompt, completions):
        raise ZeroDivisionError("on purpose")

    recorder = Recorder()
    with pytest.raises(SteptraceError, match="on purpose"):
        steptrace.run(PROGRAM, parts(reward=failing), steps=4, around=[recorder.around])
    assert recorder.recording().events[-1].op == "reward"


def test_what_the_trainer_sends_is_seen_in_its_order():
    _, recording = recorded(trainer=TokenTrainer())
    seen = [(span.kind, span.step, span.micro) for span in recording.spans if span.step == 2]
    micros = sum(kind == "fwd_bwd" for kind, _, _ in seen)
    assert seen == [*(("fwd_bwd", 2, micro) for micro in range(micros)), ("update", 2, None)]
    assert {span.device for span in recording.spans} == {"trainer"}


class FarTrainer(HashTrainer):
    """Whatever is asked for that it does not have itself is fetched from elsewhere."""

    def __getattr__(self, name: str):
        raise AssertionError(f"{name} was asked for elsewhere") if name.startswith("last_") else AttributeError(name)


def test_a_trainer_elsewhere_is_not_asked_for_what_it_might_offer():
    assert recorded(trainer=FarTrainer())[1].spans == ()


def test_control_without_tokens_no_work_is_seen():
    assert recorded()[1].spans == ()


def test_an_annotation_names_op_and_step(monkeypatch):
    named: list[str] = []

    class Annotation:
        def __init__(self, name: str) -> None:
            named.append(name)

        def __enter__(self) -> None:
            pass

        def __exit__(self, *raised: object) -> None:
            pass

    monkeypatch.setattr(jax.profiler, "TraceAnnotation", Annotation)
    recorded(recorder=Recorder(annotate=True), steps=2)
    assert {"initial_sync/-1", "pack/0", "pack/1"} <= set(named)


class Token:
    """Ready when it is told to be."""

    def __init__(self) -> None:
        self.ready = threading.Event()

    def block_until_ready(self) -> None:
        self.ready.wait()


def sent(watcher: Watcher, step: int, called: float, returned: float, token, done: float | None = None) -> None:
    watcher.sent(Sent(Op("fwd_bwd", "fwd_bwd", (), ()), step, 0, "", called, returned, token, done))


def test_work_begins_when_it_was_sent_and_what_came_before_it_was_done():
    watcher, first, second = Watcher("trainer", 10), Token(), Token()
    now = time.perf_counter()
    sent(watcher, 0, now - 2.0, now - 1.0, first)
    sent(watcher, 1, now - 0.9, now - 0.8, second)
    first.ready.set()
    second.ready.set()
    one, two = watcher.close()
    assert one.start == now - 1.0
    assert two.start == one.end > two.issued


def test_work_that_was_done_when_its_call_returned_counts_from_its_beginning():
    watcher = Watcher("trainer", 10)
    sent(watcher, 0, 1.0, 3.0, None, done=3.0)
    sent(watcher, 1, 3.5, 4.0, None, done=9.0)
    assert [(span.start, span.end) for span in watcher.close()] == [(1.0, 3.0), (4.0, 9.0)]


def test_what_a_call_has_waited_for_was_done_when_it_returned():
    watcher, token = Watcher("trainer", 10), Token()
    now = time.perf_counter()
    work = Sent(Op("fwd_bwd", "fwd_bwd", (), ()), 0, 0, "", now - 2.0, now - 1.0, token)
    watcher.sent(work)
    work.by = now - 0.5
    token.ready.set()
    (span,) = watcher.close()
    assert span.end == now - 0.5


def test_work_that_was_seen_late_ends_before_what_was_done_before_that():
    watcher, token = Watcher("trainer", 10), Token()
    token.ready.set()
    now = time.perf_counter()
    sent(watcher, 0, now - 2.0, now - 1.5, token)
    sent(watcher, 1, now - 1.4, now - 1.0, None, done=now - 1.0)
    assert [span.end for span in watcher.close()] == [now - 1.0, now - 1.0]


def test_work_that_is_never_done_is_not_waited_for_for_ever():
    until, now = threading.Event(), time.perf_counter()
    watcher = Watcher("trainer", 8)
    sent(watcher, 0, now - 2.0, now - 1.5, None, done=now - 1.5)
    for step in (1, 2, 3):
        sent(watcher, step, now - 1.4, now - 1.0, Stuck(until))
    assert [span.step for span in watcher.close(0.05)] == [0]
    assert watcher.dropped == 3
    until.set()


def test_control_work_that_is_done_late_is_waited_for():
    until, now = threading.Event(), time.perf_counter()
    watcher = Watcher("trainer", 8)
    sent(watcher, 0, now - 2.0, now - 1.5, Stuck(until))
    threading.Timer(0.1, until.set).start()
    assert len(watcher.close()) == 1
    assert watcher.dropped == 0


def test_what_was_done_before_a_failure_is_seen_however_far_behind_its_watcher_is():
    watcher, now, slow = Watcher("trainer", 200), time.perf_counter(), Token()
    threading.Timer(0.1, slow.ready.set).start()
    sent(watcher, 0, now - 2.0, now - 1.5, slow)  # the 100 behind it stand in the queue when it is stopped
    for step in range(1, 101):
        sent(watcher, step, now - 1.4, now - 1.0, None, done=now - 1.0)
    watcher.stop()
    assert [span.step for span in watcher.close()] == list(range(101))
    assert watcher.dropped == 0


def test_a_run_leaves_its_events_and_costs_behind(tmp_path):
    events, costs = tmp_path / "events.json", tmp_path / "costs.toml"
    steptrace.run(PROGRAM, parts(), steps=5, timed=True, events=events, profile=costs)
    recording = read_events(events)
    assert max(event.step for event in recording.events) == 4
    assert {span.device for span in recording.spans} >= {"trainer"}
    from steptrace.cost import read_costs

    found = read_costs(costs)
    assert found.unknown(steptrace.resolve(PROGRAM)) == ("save_checkpoint",)
    assert found.micro_batches == len({event.micro for event in recording.events if event.kind == "fwd_bwd"})
    assert "what was waited for behind its call" in costs.read_text()
    assert "share the cores" in costs.read_text()


class Stuck:
    """Work that is never done, as far as the test goes."""

    def __init__(self, until: threading.Event) -> None:
        self.until = until

    def block_until_ready(self):
        self.until.wait(60)


class StuckTrainer(TokenTrainer):
    """From step 1 on its work is never done; in step 2 it fails."""

    def __init__(self, until: threading.Event, error: BaseException) -> None:
        super().__init__()
        self.until, self.error = until, error

    def fwd_bwd(self, micro_batch) -> None:
        if micro_batch.step == 2:
            raise self.error
        super().fwd_bwd(micro_batch)
        if micro_batch.step == 1:
            self.last_call_token = Stuck(self.until)


def watching() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("steptrace-watch")]


@pytest.mark.parametrize("error", [ZeroDivisionError("on purpose"), KeyboardInterrupt("on purpose")])
def test_a_run_that_fails_leaves_its_events_and_nobody_who_watches(tmp_path, error):
    until, events = threading.Event(), tmp_path / "events.json"
    trainer = StuckTrainer(until, error)
    with pytest.raises(type(error), match="on purpose"):
        steptrace.run(PROGRAM, parts(trainer=trainer), steps=5, events=events, profile=tmp_path / "costs.toml")
    recording = read_events(events)
    assert {("fwd_bwd", 1), ("fwd_bwd", 2)} < {(event.op, event.step) for event in recording.events}
    assert {(span.op, span.step) for span in recording.spans} == {("fwd_bwd", 0), ("update", 0)}
    assert recording.dropped > 0  # what was sent behind it
    assert not (tmp_path / "costs.toml").exists()
    until.set()  # only then can what waits for the device end
    for thread in watching():
        thread.join(10)
    assert watching() == []


def test_what_a_failed_run_did_that_cannot_be_written_hides_nothing(tmp_path, monkeypatch):
    def refused(*_):
        raise PermissionError(13, "no", "events.json")

    monkeypatch.setattr("steptrace.run.keep.write_events", refused)
    trainer = StuckTrainer(until := threading.Event(), ZeroDivisionError("on purpose"))
    with pytest.raises(ZeroDivisionError, match="on purpose"):
        steptrace.run(PROGRAM, parts(trainer=trainer), steps=5, events=tmp_path / "events.json")
    until.set()


def test_a_profile_needs_steps_and_a_place(tmp_path):
    trainer = HashTrainer()
    for option, code in (
        ({"steps": 2, "profile": tmp_path / "costs.toml"}, "ST641"),
        ({"steps": 5, "profile": tmp_path / "missing" / "costs.toml"}, "ST600"),
        ({"steps": 5, "events": tmp_path}, "ST600"),
        ({"steps": 5, "events": 3}, "ST308"),
        ({"steps": 5, "events": tmp_path / "e", "profile": tmp_path / ".." / tmp_path.name / "e"}, "ST308"),
    ):
        with pytest.raises(SteptraceError) as caught:
            steptrace.run(PROGRAM, parts(trainer=trainer), **option)
        assert caught.value.code == code, option
    assert trainer.calls == []


def test_data_that_ends_before_the_steps_that_count_leaves_a_remark(tmp_path):
    prompts = ListPrompts([Prompt(f"p:{index}", f"prompt {index}") for index in range(8)])
    run = steptrace.run(PROGRAM, parts(prompts=prompts), epochs=1, profile=tmp_path / "costs.toml")
    assert run.steps == 2
    assert "was not written: of 2 steps the first 2 compile" in run.remarks[-1]
    assert not (tmp_path / "costs.toml").exists()


def test_events_are_small(tmp_path):
    steptrace.run(PROGRAM, parts(), steps=5, events=tmp_path / "events.json")
    text = (tmp_path / "events.json").read_text()
    assert len(text) < 300 * len(json.loads(text)["events"]["rows"])
