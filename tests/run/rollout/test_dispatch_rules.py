"""What a dispatch may be told: more prompts than are trained, dynamic sampling, a window, a held second batch."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from flax import nnx

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "lanes"))
from fakes import HashRollout, parts
from lane_parts import StagingTrainer, lane_bind, made_by, wait_until

import steptrace
from steptrace.check.schedule import check_schedule
from steptrace.diag.binding import NotLowerableError, PartResultError
from steptrace.diag.data import SamplingCapError
from steptrace.diag.rollout import WeightsMismatchError
from steptrace.diag.running import StaggerError, WindowClosedError
from steptrace.diag.schedule import OrderError
from steptrace.ir import parse_program, print_program
from steptrace.lang.records import Prompt
from steptrace.lower import lower
from steptrace.run.api import plan_for
from steptrace.run.binding import bind_parts
from steptrace.run.data.prompts import ListPrompts
from steptrace.run.dispatching import check_stagger
from steptrace.run.executor import Executor
from steptrace.run.session import Session

PROMPTS = [Prompt(f"p:{index}", f"prompt {index}") for index in range(40)]


def program_of(staleness=0, saves=False, **options):
    """A step whose dispatch is told something."""

    @steptrace.program(name="told", staleness=staleness, saves="may_fail_late")
    def told(step):
        step.dispatch(**({"prompts": 3, "samples": 2} | options))
        scored = step.advantages(step.reward(step.take()))
        for mb in step.micro_batches(step.pack(scored)):
            step.fwd_bwd(step.ref_logps(mb))
        step.update()
        metrics = step.get_metrics()
        if saves:
            with step.every(2):
                step.save_checkpoint()
        step.sync_weights()
        step.commit()
        step.log(metrics)

    return told.trace()


def test_what_a_dispatch_is_told_is_in_the_text():
    text = print_program(program_of(extra=2, window=True, stagger=True))
    assert "dispatch() {extra=2, prompts=3, samples=2, stagger=true, window=true}" in text
    assert "commit() {window=true}" in text
    assert print_program(parse_program(text)) == text


def test_control_nothing_told_nothing_printed():
    text = print_program(program_of())
    assert "dispatch() {prompts=3, samples=2}" in text
    assert "window" not in text


# More prompts than are trained.


class Losing(HashRollout):
    """Loses the prompts whose number is a multiple of three."""

    def generate(self, prompts, samples, *, version, key):
        made = super().generate(prompts, samples, version=version, key=key)
        return [None if int(p.id[2:]) % 3 == 0 else c for p, c in zip(prompts, made, strict=True)]


class OtherGraph(HashRollout):
    """A rollout that merges weights of two layers with the graph of some layers."""

    def __init__(self, layers):
        super().__init__()
        model = [[nnx.Linear(2, 2, rngs=nnx.Rngs(0)) for _ in range(count)] for count in (layers, 2)]
        (self.graph, _), (_, self.weights) = (nnx.split(nnx.List(one)) for one in model)

    def generate(self, prompts, samples, *, version, key):
        nnx.merge(self.graph, self.weights)
        return super().generate(prompts, samples, version=version, key=key)


def test_a_graph_that_does_not_fit_the_weights_is_told_at_the_dispatch():
    with pytest.raises(WeightsMismatchError, match="expected 6 leaves, but got 4") as info:
        judged_by(program_of(), OtherGraph(3), steps=1)
    assert info.value.loc == next(op.loc for op in program_of().ops() if op.kind == "dispatch")


def test_control_a_graph_that_fits_generates():
    assert judged_by(program_of(), OtherGraph(2), steps=1)


class Groups:
    """A reward that notes the groups it judges."""

    def __init__(self):
        self.judged = []

    def __call__(self, prompt, completions):
        self.judged.append(prompt.id)
        return [float(len(text)) for text in completions]


def judged_by(program, rollout, steps=4, **options):
    reward = Groups()
    bound = parts(rollout=rollout, reward=reward, prompts=ListPrompts(PROMPTS))
    steptrace.run(program, bound, steps=steps, **options)
    return reward.judged


def drawn_in(steps, each):
    """Prompts in the order in which a run draws them."""
    from steptrace.run.data import DataCursor, Draws

    drawn, _ = Draws(ListPrompts(PROMPTS)).draw(DataCursor(), steps * each)
    names = [prompt.id for _, prompt in drawn]
    return [names[at : at + each] for at in range(0, len(names), each)]


def test_the_first_groups_that_come_back_are_trained_and_the_surplus_is_not():
    wanted = []
    for step in drawn_in(4, 5):
        wanted += [name for name in step if int(name[2:]) % 3][:3]
    assert judged_by(program_of(extra=2), Losing()) == wanted


def test_control_without_prompts_beyond_a_lost_one_ends_the_run():
    with pytest.raises(PartResultError, match="nothing for prompt"):
        judged_by(program_of(), Losing(), steps=8)


def test_a_resumed_run_draws_behind_the_surplus(tmp_path):
    program = program_of(extra=2, saves=True)
    whole = judged_by(program, Losing(), steps=4, out=tmp_path / "whole")
    first = judged_by(program, Losing(), steps=2, out=tmp_path / "out")
    assert first + judged_by(program, Losing(), steps=4, out=tmp_path / "out", resume=True) == whole


def test_the_data_ends_behind_the_last_prompts_that_are_drawn():
    """40 prompts at 3 + 3 a step: the seventh step gets the last four, and trains three of them at most."""
    judged = judged_by(program_of(extra=3), HashRollout(), steps=None, epochs=1)
    assert len(judged) == 7 * 3


def test_the_same_groups_under_a_schedule():
    program = program_of(1, extra=2)

    def made(pipeline):
        return made_by(program, lane_bind(rollout=Losing(), prompts=ListPrompts(PROMPTS)), steps=5, pipeline=pipeline)

    assert made("pipelined-boundary") == made("")


class Engine(HashRollout):
    """An engine that goes on with what it has been asked for behind the call, and must not be given weights then."""

    def __init__(self, seconds=0.02):
        super().__init__()
        self.seconds = seconds
        self.idle = threading.Event()
        self.idle.set()

    def generate(self, prompts, samples, *, version, key):
        assert self.idle.wait(60)
        self.idle.clear()
        threading.Timer(self.seconds, self.idle.set).start()
        return super().generate(prompts, samples, version=version, key=key)

    def apply_weights(self, weights, version):
        assert self.idle.is_set(), "weights are swapped while the engine runs"
        super().apply_weights(weights, version)


class DrainedEngine(Engine):
    """The engine, with a way to wait for it."""

    def drain(self):
        assert self.idle.wait(60)


@pytest.mark.parametrize("pipeline", ["", "async-everything"])
def test_what_still_runs_is_drained_before_weights_are_published(pipeline):
    made = made_by(program_of(1, extra=2, window=True), lane_bind(rollout=DrainedEngine()), steps=3, pipeline=pipeline)
    assert made.steps == 3


def test_control_an_engine_that_nobody_waits_for_is_given_weights_while_it_runs():
    with pytest.raises(AssertionError, match="swapped while the engine runs"):
        made_by(program_of(extra=2), lane_bind(rollout=Engine(30.0)), steps=3)


# Dynamic sampling.


class Hard:
    """A reward that is the same for all completions of 6 in 10 prompts."""

    def __init__(self):
        self.seen = []

    def __call__(self, prompt, completions):
        self.seen.append(prompt.id)
        return [float(index) if self.varies(prompt.id) else 1.0 for index, _ in enumerate(completions)]

    @staticmethod
    def varies(name):
        return int(name[2:]) % 10 < 4


def trained_by(program, steps, out=None, **options):
    """Ids of the groups that are packed, by step."""
    packed = []

    @steptrace.op(takes=("groups",), gives="groups", reads=["host[k]"], writes=[], name="noted")
    def noted(groups):
        packed.append([group.id.prompt for group in groups])
        return groups

    def told(step):
        step.dispatch(**program)
        scored = step.advantages(noted(step.reward(step.take())))
        for mb in step.micro_batches(step.pack(scored)):
            step.fwd_bwd(mb)
        step.update()
        metrics = step.get_metrics()
        if out is not None:
            with step.every(2):
                step.save_checkpoint()
        step.sync_weights()
        step.commit()
        step.log(metrics)

    bound = parts(reward=Hard(), prompts=ListPrompts(PROMPTS), rollout=options.pop("rollout", HashRollout()))
    result = steptrace.run(steptrace.program(name="varied")(told), bound, steps=steps, out=out, **options)
    return packed, result


VARIED = {"prompts": 4, "samples": 2, "keep": "varied"}


def test_a_step_draws_until_enough_groups_have_rewards_that_differ():
    packed, result = trained_by(VARIED, 4)
    valid = [name for step in drawn_in(1, 80) for name in step if Hard.varies(name)]
    assert packed == [valid[at : at + 4] for at in range(0, 16, 4)]  # every valid group once, in order: none is lost
    assert result.steps == 4
    assert {record["groups_of_equal_rewards"] for record in result.records} == {0.0}


class Waves(HashRollout):
    """Notes how many prompts it is asked for at a time."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def generate(self, prompts, samples, *, version, key):
        self.sizes.append(len(prompts))
        return super().generate(prompts, samples, version=version, key=key)


def test_a_wave_is_what_is_missing_so_no_valid_group_is_left_over():
    rollout = Waves()
    _, result = trained_by(VARIED, 4, rollout=rollout)
    assert result.steps == 4
    assert rollout.sizes[0] == 4
    assert min(rollout.sizes) < 4
    assert max(rollout.sizes) == 4


def test_control_waves_of_one_size_would_give_valid_groups_up():
    """With more prompts in a wave than groups are missing some are valid and not needed: they would have to be kept."""
    valid, wasted = [name for step in drawn_in(1, 80) for name in step], 0
    for at in range(0, 64, 16):
        kept = 0
        for wave in (valid[at : at + 4], valid[at + 4 : at + 8], valid[at + 8 : at + 12], valid[at + 12 : at + 16]):
            found = sum(map(Hard.varies, wave)) if kept < 4 else 0
            wasted += max(0, kept + found - 4)
            kept = min(4, kept + found)
    assert wasted > 0


def test_waves_of_what_is_missing_do_not_go_with_more_than_that():
    with pytest.raises(NotLowerableError, match="`extra` draws nothing more") as info:
        trained_by(VARIED | {"extra": 2}, 2)
    assert "step.dispatch" in info.value.loc.source()


def test_control_a_fixed_number_of_prompts_trains_on_groups_that_teach_nothing():
    packed, result = trained_by({"prompts": 4, "samples": 2}, 4)
    assert not all(Hard.varies(name) for step in packed for name in step)
    assert max(record["groups_of_equal_rewards"] for record in result.records) > 0


def test_too_few_groups_within_the_cap_end_the_run_with_the_tally():
    with pytest.raises(SamplingCapError, match=r"keeps \d of 4 groups after 5 prompts: 5 drawn, 0 lost, \d of equal"):
        trained_by(VARIED | {"most": 5}, 10)


def test_a_resumed_run_goes_on_with_the_prompts_behind_those_that_were_drawn(tmp_path):
    whole, result = trained_by(VARIED, 4, out=tmp_path / "whole")
    first, _ = trained_by(VARIED, 2, out=tmp_path / "out")
    second, resumed = trained_by(VARIED, 4, out=tmp_path / "out", resume=True)
    assert first + second == whole
    assert resumed.params_digest == result.params_digest


def test_the_data_ends_in_the_middle_of_a_step():
    packed, result = trained_by(VARIED, None, epochs=1)
    assert [len(step) for step in packed] == [4, 4, 4, 4][: len(packed)]
    assert sum(map(len, packed)) == 16
    assert result.steps == len(packed)


@pytest.mark.parametrize("pipeline", ["take-ahead", "pipelined-boundary"])
def test_no_lane_can_run_ahead_of_a_number_of_prompts_that_is_not_known(pipeline):
    with pytest.raises(NotLowerableError, match="draws until enough groups can be trained"):
        made_by(program_of(1, keep="varied"), lane_bind(), steps=2, pipeline=pipeline)


# The window.


def test_a_dispatch_with_a_window_waits_for_a_commit():
    """At staleness 1 the batch of step k+2 waits for the commit of step k."""
    text = print_program(program_of(1, window=True))
    (line,) = [line for line in text.splitlines() if line.lstrip().startswith("dispatch()")]
    assert "queue.committed[k-2]" in line


def between_sync_and_commit(program):
    """The schedule that dispatches two steps ahead, between the sync and the commit."""
    lines = print_program(program).splitlines()
    (dispatch,) = [line for line in lines if line.lstrip().startswith("dispatch()")]
    lines.remove(dispatch)
    place = next(at for at, line in enumerate(lines) if " commit()" in line)
    early = dispatch.replace(" reads[", " shift=+2 reads[", 1)
    return parse_program("\n".join([*lines[:place], early, *lines[place:]]) + "\n")


def test_a_schedule_that_dispatches_before_the_commit_is_refused():
    program = program_of(1, window=True)
    with pytest.raises(OrderError, match=r"`dispatch` of step k\+2 .*`commit` of step k"):
        check_schedule(between_sync_and_commit(program), program)


def test_control_without_a_window_it_only_needs_the_weights():
    program = program_of(1)
    check_schedule(between_sync_and_commit(program), program)


def test_a_commit_that_lost_its_mark_is_found_when_the_batch_goes_out_too_early():
    """By hand the mark of the commit can be taken away, and with it the edge."""
    text = print_program(program_of(1, window=True)).replace("commit() {window=true}", "commit()")
    program = parse_program(text.replace("queue.committed[k], ", ""))
    check_schedule(between_sync_and_commit(program), program)
    plan = lower(between_sync_and_commit(program), "inline", source=program)
    session = Session(plan, bind_parts(plan, lane_bind()), seed=0, epochs=None, out=None)
    executor = Executor(session)
    executor.prologue()
    with pytest.raises(WindowClosedError, match="the batch of step 2 is dispatched while step 0 is not committed"):
        executor.steps(0, 4)


class Swapped(Engine):
    """An engine that counts how often it is sampling and given weights at once; each waits a moment for the other."""

    def __init__(self):
        super().__init__()
        self.overlaps = 0
        self.sampling = self.applying = False

    def generate(self, prompts, samples, *, version, key):
        self.sampling = True
        wait_until(lambda: self.applying, 0.1)
        self.overlaps += self.applying
        self.sampling = False
        return HashRollout.generate(self, prompts, samples, version=version, key=key)

    def apply_weights(self, weights, version):
        self.applying = True
        wait_until(lambda: self.sampling, 0.1)
        self.overlaps += self.sampling
        self.applying = False
        HashRollout.apply_weights(self, weights, version)


class AppliesWhileSampling(StagingTrainer):
    """Its update waits until the rollout samples, so that the sync behind it meets a dispatch."""

    engine = None

    def update(self):
        wait_until(lambda: self.engine.sampling, 0.05)
        super().update()


def overlaps(**told):
    trainer = AppliesWhileSampling()
    engine = trainer.engine = Swapped()
    made_by(program_of(2, **told), lane_bind(trainer, rollout=engine), steps=6, pipeline="take-ahead")
    return engine.overlaps


def test_with_a_window_no_batch_is_sampled_while_weights_are_published():
    assert overlaps(window=True) == 0


def test_control_without_one_versions_are_held_side_by_side_and_both_go_on_at_once():
    assert overlaps() > 0


# The second batch.


class Watched(HashRollout):
    """Notes how many updates the trainer has made whenever it samples."""

    def __init__(self, trainer):
        super().__init__()
        self.trainer = trainer
        self.updates = []

    def generate(self, prompts, samples, *, version, key):
        self.updates.append(self.trainer.applied)
        return super().generate(prompts, samples, version=version, key=key)


class WaitsForTheNext(StagingTrainer):
    """Its training calls of steps 0 and 1 wait a moment for the rollout to be asked for the batch of the next step."""

    rollout = None

    def fwd_bwd(self, micro_batch, **how):
        wait_until(lambda: len(self.rollout.updates) > micro_batch.step + 1, 0.3 if micro_batch.step < 2 else 0.0)
        return super().fwd_bwd(micro_batch, **how)


def updates_before_each_batch(pipeline="pipelined-boundary", **told):
    trainer = WaitsForTheNext()
    rollout = trainer.rollout = Watched(trainer)
    made = made_by(program_of(1, **told), lane_bind(trainer, rollout=rollout), steps=4, pipeline=pipeline)
    return rollout.updates, made


@pytest.mark.parametrize("pipeline", ["pipelined-boundary", "take-ahead", "async-everything"])
def test_the_second_batch_is_held_until_the_first_step_is_committed(pipeline):
    updates, held = updates_before_each_batch(pipeline, stagger=True)
    assert updates[:2] == [0, 1]
    assert updates[2] == 1  # the batch behind it is sampled while step 1 trains
    plain_updates, plain = updates_before_each_batch("", stagger=True)
    assert plain_updates == [0, 1, 2, 3]
    assert (held.params, held.groups) == (plain.params, plain.groups)


def test_a_take_that_would_hold_up_what_it_waits_for_is_refused():
    """On one lane the take of step 1 comes before the reward of step 0, which the commit of step 0 needs."""
    text = print_program(program_of(2, stagger=True))
    lines = []
    for line in text.splitlines():
        for op, shift in (("dispatch", 2), ("take", 2), ("reward", 1)):
            if f"{op}(" in line and "lane=host" in line:
                line = line.replace("lane=host", f"lane=packer shift=+{shift}")
        lines.append(line)
    with pytest.raises(StaggerError, match="`reward` of the first step comes behind it"):
        check_stagger(plan_of(parse_program("\n".join(lines) + "\n")))


def plan_of(program):
    """As much of a plan as is looked at."""

    class Looked:
        def __init__(self, program):
            self.program = program

        def calls(self):
            return (SimpleNamespace(op=op, kind=SimpleNamespace(name=op.kind)) for op in self.program.ops())

    return Looked(program)


def test_control_a_step_that_is_taken_one_ahead_is_not():
    check_stagger(plan_for(program_of(1, stagger=True), "pipelined-boundary"))


def test_control_without_it_the_second_batch_goes_out_at_once():
    updates, _ = updates_before_each_batch()
    assert updates[:2] == [0, 0]


def test_weights_of_a_batch_that_is_held_stay_while_later_batches_are_dispatched():
    """Step 1 is sampled behind the dispatch of step 2, which needs newer weights only, and step 0 is over by then."""
    published, dispatched, seen = threading.Event(), threading.Event(), []

    def late(rule):
        def run(session, at, *operands):
            where = (at.op.kind, at.step)
            if where == ("take", 1):
                await_commit = session.queue.await_commit

                def and_dispatch(*args):
                    await_commit(*args)
                    dispatched.wait(10)
                    seen.append(session.frames.oldest(9))

                session.queue.await_commit = and_dispatch
            if where == ("free", 0):
                published.wait(10)
                time.sleep(0.05)  # the rollout's lane is past step 0
            made = rule(session, at, *operands)
            if where == ("apply_weights", 0):
                published.set()
            if where == ("dispatch", 2):
                dispatched.set()
            return made

        return run

    trainer = StagingTrainer()
    rollout = Watched(trainer)
    bound, program = lane_bind(trainer, rollout=rollout), program_of(1, stagger=True)
    held = made_by(program, bound, steps=4, pipeline="async-everything", around=[late])
    assert seen == [1]
    assert held.params == made_by(program, lane_bind(), steps=4).params
