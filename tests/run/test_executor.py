"""What a step does when it runs: loops, conditions, carries, empty steps, and errors with their place."""

from __future__ import annotations

import numpy as np
import pytest
from fakes import HalfReference, HashRollout, HashTrainer, parts

import steptrace
from steptrace.diag import SteptraceError
from steptrace.diag.data import RewardNotFiniteError
from steptrace.diag.running import EmptyStepError
from steptrace.lower import lower
from steptrace.lower.targets import PLAIN_OPS
from steptrace.programs.grpo import grpo
from steptrace.programs.grpo_epochs import grpo_epochs
from steptrace.programs.grpo_stream import grpo_stream
from steptrace.run.binding import bind_parts
from steptrace.run.executor import Executor
from steptrace.run.session import Session
from steptrace.run.verbs import VERBS

SMALL = {"prompts": 3, "samples": 2}


@steptrace.op(takes=("groups",), gives="groups", reads=["host[k]"], writes=[])
def none_left(groups, *, every: int = 1):
    """Leaves no group in every n-th step."""
    return [] if (groups[0].step + 1) % every == 0 else groups


@steptrace.op(takes=("groups",), gives=("groups", "any_left: flag"), reads=["host[k]"], writes=[])
def short_ones(groups):
    """Leaves the groups whose completions are all short."""
    left = [group for group in groups if all(len(made.tokens) < 3 for made in group.completions)]
    return left, bool(left)


def filtered(**contract):
    """A step whose groups are all filtered away in every second step."""

    @steptrace.program(**contract)
    def made(step):
        step.dispatch(prompts=3, samples=2)
        left = none_left(step.reward(step.take()), every=2)
        for mb in step.micro_batches(step.pack(step.advantages(left))):
            step.fwd_bwd(step.ref_logps(mb))
        step.update()
        metrics = step.get_metrics()
        step.sync_weights()
        step.commit()
        step.log(metrics)
        step.on_step_end(reads=["metrics"])

    return made.trace()


def test_a_step_without_a_micro_batch_makes_no_update_and_is_logged():
    trainer, rollout = HashTrainer(), HashRollout()
    result = steptrace.run(filtered(empty="skip"), parts(trainer=trainer, rollout=rollout), steps=4)
    updates = [call for call in trainer.calls if call in ("update", "get_metrics")]
    assert updates == ["update", "get_metrics", "get_metrics", "update", "get_metrics", "get_metrics"]
    assert [record["empty_updates"] for record in result.records] == [0.0, 1.0, 0.0, 1.0]
    assert [record["micro_batches"] for record in result.records] == [1.0, 0.0, 1.0, 0.0]
    assert [record["step"] for record in result.records] == [0.0, 1.0, 2.0, 3.0]
    assert rollout.asked == [0, 1, 1, 2]


def test_groups_of_an_empty_step_count_as_trained(tmp_path):
    """They were drawn and judged; they will not come again."""
    result = steptrace.run(filtered(empty="skip"), parts(), epochs=1, out=tmp_path)
    assert result.steps == 4
    assert len((tmp_path / "trained_groups.jsonl").read_text().splitlines()) == 4


def test_an_empty_step_is_refused_where_the_program_says_so():
    trainer = HashTrainer()
    with pytest.raises(EmptyStepError, match="`update` of step 1") as info:
        steptrace.run(filtered(empty="error"), parts(trainer=trainer), steps=4)
    assert "step.update()" in info.value.loc.source()
    assert trainer.applied == 1


def test_empty_mini_batches_are_not_updated_on():
    program = grpo_epochs.trace(prompts=2, samples=2, epochs=1, mini_batches=3)
    trainer = HashTrainer()
    result = steptrace.run(program, parts(trainer=trainer), steps=1)
    assert trainer.applied == 2
    assert result.records[0]["empty_updates"] == 1.0


def test_epochs_go_over_the_mini_batches_in_the_same_order_with_an_update_for_each():
    seen = []

    class Trainer(HashTrainer):
        def fwd_bwd(self, micro_batch):
            super().fwd_bwd(micro_batch)
            seen.append([name.prompt for row in micro_batch.keys for name, _ in row])

    trainer = Trainer()
    program = grpo_epochs.trace(prompts=5, samples=2, epochs=2, mini_batches=2)
    steptrace.run(program, parts(trainer=trainer), steps=1)
    assert [call.partition(" ")[0] for call in trainer.calls[:8]] == ["fwd_bwd", "update"] * 4
    first, second = seen[:2], seen[2:]
    assert first == second
    sizes = [len(dict.fromkeys(part)) for part in first]
    assert sizes == [2, 3]
    assert len({name for part in first for name in part}) == 5


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_stream_gives_the_micro_batches_of_the_bulk_form(staleness):
    bulk = steptrace.run(grpo.trace(**SMALL, staleness=staleness), parts(), steps=5)
    streamed = steptrace.run(grpo_stream.trace(**SMALL, staleness=staleness), parts(), steps=5)
    assert streamed.calls_digest == bulk.calls_digest
    assert streamed.params_digest == bulk.params_digest
    assert [dict(record) for record in streamed.records] == [dict(record) for record in bulk.records]


def test_control_a_stream_over_other_groups_gives_others():
    bulk = steptrace.run(grpo.trace(**SMALL), parts(), steps=2)
    streamed = steptrace.run(grpo_stream.trace(**SMALL), parts(), steps=2, seed=1)
    assert streamed.calls_digest != bulk.calls_digest


def test_a_stream_takes_advantages_that_leave_groups_out():
    def short(groups):
        from steptrace.run.data.advantages import GroupAdvantages

        return GroupAdvantages()([group for group in groups if len(group.completions[0].tokens) > 1])

    result = steptrace.run(grpo_stream.trace(**SMALL), parts(advantages=short), steps=4)
    assert result.steps == 4


@steptrace.op(takes=("micro_batch",), reads=[], writes=["log"])
def noted(mb, *, at: str):
    NOTED.append((at, mb.index))


NOTED: list[tuple[str, int]] = []


@steptrace.program
def conditional(step):
    step.dispatch(prompts=4, samples=3)
    groups, any_left = short_ones(step.reward(step.take()))
    for mb in step.micro_batches(step.pack(step.advantages(groups))):
        with step.when(step.first):
            noted(mb, at="first")
        with step.when(step.last):
            noted(mb, at="last")
        with step.when(step.micro_is(1) & ~step.last):
            noted(mb, at="inner")
        with step.when(step.has("teleport")):
            noted(mb, at="never")
        step.fwd_bwd(mb)
    step.update()
    metrics = step.get_metrics()
    step.sync_weights()
    step.commit()
    with step.when(any_left):
        step.log(metrics)


def test_conditions_on_rounds_and_flags():
    from steptrace.run.data.packing import Packer

    NOTED.clear()
    seen = HashTrainer()
    packer = Packer(rows=1, length=12)
    result = steptrace.run(conditional, parts(trainer=seen, packer=packer), steps=12)
    counts = [int(record["micro_batches"]) for record in result.records]
    wanted = []
    for count in counts:
        rounds = [("first", 0), ("inner", 1), ("last", count - 1)]
        wanted += rounds if count > 2 else [rounds[0], rounds[2]]
    assert sorted(NOTED) == sorted(wanted)
    assert 0 < len(counts) < 12  # only steps with groups are logged
    assert len([call for call in seen.calls if call.startswith("fwd_bwd")]) == sum(counts)
    assert len({*counts}) > 1


@steptrace.op(takes=("metrics", "scalar"), gives="next_coef: scalar", reads=[], writes=[])
def controller(metrics, coef):
    COEFS.append(coef)
    return coef * np.float32(2.0)


COEFS: list[object] = []


@steptrace.program
def carried(step):
    coef = step.carry("coef", init=0.5)
    step.dispatch(prompts=3, samples=2)
    for mb in step.micro_batches(step.pack(step.advantages(step.reward(step.take())))):
        step.fwd_bwd(mb)
    step.update()
    metrics = step.get_metrics()
    coef.set(controller(metrics, coef.value))
    step.sync_weights()
    step.commit()


def test_a_carry_hands_on_what_the_step_before_set_as_a_float():
    COEFS.clear()
    steptrace.run(carried, parts(), steps=4)
    assert COEFS == [0.5, 1.0, 2.0, 4.0]
    assert {type(coef) for coef in COEFS} == {float}


def test_a_carry_starts_anew_in_each_run():
    COEFS.clear()
    for _ in range(2):
        steptrace.run(carried, parts(), steps=2)
    assert COEFS == [0.5, 1.0, 0.5, 1.0]


def session(program, **options) -> Session:
    plan = lower(program)
    return Session(plan, bind_parts(plan, options.pop("bind", parts())), seed=0, epochs=None, out=None)


def test_a_step_holds_nothing_of_the_one_before():
    run = session(grpo.trace(**SMALL))
    executor = Executor(run)
    executor.prologue()
    steps = []

    def ended(step, seconds):
        steps.append(step)
        assert run.memory == {}
        assert run.frames.live == ()
        assert [name for name in run.plan.slots if run.frames.value(name, step) is not None] == ["v0"]
        assert run.calls.pending == 0

    assert executor.steps(0, 3, ended) == 3
    assert steps == [0, 1, 2]


def test_memory_is_let_go_where_the_program_frees_nothing():
    program = grpo.trace(**SMALL)
    body = tuple(node for node in program.body if getattr(node, "kind", "") != "free")
    assert len(body) == len(program.body) - 1
    from dataclasses import replace

    run = session(replace(program, body=body))
    executor = Executor(run)
    executor.prologue()
    executor.steps(0, 1)
    assert run.memory == {}


def test_every_kind_that_the_target_has_a_rule_for_has_an_implementation():
    assert set(VERBS) == PLAIN_OPS


def test_times_of_ops_are_kept_by_kind():
    result = steptrace.run(grpo.trace(**SMALL, save_every=2), parts(), steps=2)
    kinds = {call.kind.name for call in lower(grpo.trace(**SMALL)).calls()}
    assert set(result.phase_seconds) == kinds
    assert set(result.phase_ms) == kinds
    assert all(seconds > 0 for seconds in result.phase_seconds.values())


def test_a_timed_run_waits_after_ops_that_do_not_and_trains_the_same():
    waits = []

    class Waiting(HashTrainer):
        def wait_for_device(self):
            waits.append(self.calls[-1] if self.calls else "")

    program = grpo.trace(**SMALL)
    timed = steptrace.run(program, parts(trainer=Waiting()), steps=2, timed=True)
    plain = steptrace.run(program, parts(), steps=2)
    assert "update" in waits
    assert timed.calls_digest == plain.calls_digest


def broken(role: str, method: str, error: Exception):
    """Parts one of which raises in step 1."""
    made = parts()

    def fails(*args, **kwargs):
        fails.calls += 1
        if fails.calls > 1:
            raise error
        return real(*args, **kwargs)

    fails.calls = 0
    part = made[role]
    real = getattr(part, method)
    setattr(part, method, fails)
    return made


@pytest.mark.parametrize(
    ("role", "method", "op"),
    [
        ("trainer", "fwd_bwd", "fwd_bwd"),
        ("trainer", "update", "update"),
        ("trainer", "get_metrics", "get_metrics"),
        ("rollout", "generate", "dispatch"),
        ("reference", "logps", "ref_logps"),
    ],
)
def test_what_a_part_raises_comes_through_with_its_place(role, method, op):
    error = ConnectionError("gone")
    with pytest.raises(ConnectionError) as info:
        steptrace.run(grpo.trace(**SMALL), broken(role, method, error), steps=3)
    assert info.value is error
    (note,) = error.__notes__
    assert note.startswith(f"in `{op}` of step 1, lane host (")
    assert "grpo.py:" in note


def test_a_callback_that_raises_ends_the_run_and_the_trackers_are_closed():
    closed = []

    class Tracker:
        def __init__(self, name):
            self.name = name

        def log(self, step, metrics):
            pass

        def close(self):
            closed.append(self.name)
            raise OSError("cannot flush")

    class Callback:
        def on_step_end(self, step, metrics):
            raise ValueError("stop here")

    trackers = [Tracker("a"), Tracker("b")]
    with pytest.raises(ValueError, match="stop here") as info:
        steptrace.run(grpo.trace(**SMALL), parts(callbacks=Callback(), tracker=trackers), steps=3)
    assert closed == ["a", "b"]
    assert "`on_step_end` of step 0" in info.value.__notes__[0]
    closed.clear()
    with pytest.raises(OSError, match="cannot flush"):
        steptrace.run(grpo.trace(**SMALL), parts(tracker=trackers), steps=1)
    assert closed == ["a", "b"]


def test_a_coded_error_gets_the_line_of_its_op_or_a_note_of_it():
    def nan(prompt, completions):
        return [float("nan")] * len(completions)

    with pytest.raises(RewardNotFiniteError) as info:
        steptrace.run(grpo.trace(**SMALL), parts(reward=nan), steps=1)
    assert info.value.loc.file == __file__
    (note,) = info.value.notes
    assert note.text == "in `reward` of step 0, lane host"
    assert "step.reward" in note.loc.source()

    class Coded(HalfReference):
        def logps(self, micro_batch):
            raise SteptraceError("no line of its own")

    with pytest.raises(SteptraceError) as info:
        steptrace.run(grpo.trace(**SMALL), parts(reference=Coded()), steps=1)
    assert "step.ref_logps" in info.value.loc.source()
    assert [note.text for note in info.value.notes] == ["in `ref_logps` of step 0, lane host"]


def test_trackers_and_callbacks_get_copies():
    class Greedy:
        def log(self, step, metrics):
            metrics.clear()

        def close(self):
            pass

        def on_step_end(self, step, metrics):
            metrics.clear()

    greedy = Greedy()
    result = steptrace.run(grpo.trace(**SMALL), parts(tracker=[greedy, greedy], callbacks=greedy), steps=2)
    assert [record["step"] for record in result.records] == [0.0, 1.0]
