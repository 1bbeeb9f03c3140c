"""Every built-in program under every named pipeline trains, bit for bit, what it trains in its own order."""

from __future__ import annotations

import functools

import pytest
from lane_parts import (
    PIPES,
    SINGLE,
    Delays,
    HashRollout,
    HashTrainer,
    PatientTrainer,
    StagingTrainer,
    lane_bind,
    made_by,
    no_lane_is_left,
    slowed,
    wait_until,
)

import steptrace

PROGRAMS = ("grpo", "dr_grpo", "rloo", "reinforce_pp", "grpo_stream", "grpo_epochs")


@steptrace.op(takes=("groups",), gives="groups", reads=["host[k]"], writes=[])
def some_left(groups):
    """Leaves every second step fewer groups, and every fourth one none."""
    step = groups[0].step
    return [] if step % 4 == 2 else groups[: 1 + step % len(groups)]


@steptrace.program(staleness=1)
def thinned(step, prompts: int = 4, samples: int = 3, save_every: int = 2):
    """Steps of 0 to many micro-batches."""
    step.dispatch(prompts=prompts, samples=samples)
    left = some_left(step.reward(step.take()))
    for mb in step.micro_batches(step.pack(step.advantages(left))):
        step.fwd_bwd(step.ref_logps(mb))
    step.update()
    metrics = step.get_metrics()
    with step.every(save_every):
        step.save_checkpoint()
    step.sync_weights()
    step.commit()
    step.log(metrics)
    step.on_step_end(reads=["metrics"])


@functools.cache
def base(program: str, steps: int, *, before: str = "", **options):
    """What the program trains in its own order."""
    return made_by(named(program), lane_bind(), steps=steps, pipeline=before, **options)


def named(program: str):
    if program == "thinned":
        return thinned.trace()
    return f"{program}{{prompts=4, samples=3, staleness=1, save_every=2}}"


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "pipeline", [PIPES[0], PIPES[3], *(pytest.param(text, marks=SLOW) for text in (*PIPES[1:3], *SINGLE))]
)
@pytest.mark.parametrize(
    "program",
    ["grpo", "grpo_stream", "grpo_epochs", "thinned", *(pytest.param(name, marks=SLOW) for name in PROGRAMS[1:4])],
)
@pytest.mark.parametrize("trainer", [HashTrainer, StagingTrainer])
def test_the_same_parameters_calls_groups_and_records(program, pipeline, trainer):
    for steps in (0, 1, 2, 5):
        assert made_by(named(program), lane_bind(trainer()), steps=steps, pipeline=pipeline) == base(program, steps)
    assert no_lane_is_left()


def test_control_steps_differ_in_their_number_of_micro_batches():
    counts = [record["micro_batches"] for record in base("thinned", 5).records]
    assert 0.0 in counts
    assert len({*counts}) > 2
    assert len({record["micro_batches"] for record in base("grpo", 5).records}) > 1


@pytest.mark.parametrize("pipeline", PIPES)
@pytest.mark.parametrize("staleness", [0, 2])
def test_other_staleness(pipeline, staleness):
    program = f"grpo{{prompts=3, samples=2, staleness={staleness}}}"
    # A pass that allows staleness changes what is trained: then the program with that staleness is the one to equal.
    before = "one-step-off{staleness=1}" if pipeline == "async-everything" else ""
    wanted = made_by(program, lane_bind(), steps=4, pipeline=before)
    assert made_by(program, lane_bind(), steps=4, pipeline=pipeline) == wanted


@pytest.mark.parametrize("partial", ["train", "drop"])
@pytest.mark.parametrize("program", ["grpo", "grpo_stream"])
def test_the_data_ends_where_it_ends_in_program_order(program, partial):
    text = f'{program}{{prompts=4, samples=2, staleness=1, partial="{partial}"}}'
    wanted = made_by(text, lane_bind(), epochs=1)
    assert wanted.steps == (3 if partial == "train" else 2)
    for pipeline in PIPES:
        assert made_by(text, lane_bind(), epochs=1, pipeline=pipeline) == wanted


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_deeper_take_ahead(depth):
    program = "grpo{prompts=3, samples=2, staleness=3}"
    wanted = made_by(program, lane_bind(), steps=6)
    for pipeline in (f"take-ahead{{depth={depth}}}", f"take-ahead{{depth={depth}}},defer-metrics,send-ahead"):
        assert made_by(program, lane_bind(), steps=6, pipeline=pipeline) == wanted


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("program", ["grpo", "grpo_stream", "thinned"])
def test_whatever_the_timing(program, seed):
    for pipeline in PIPES:
        bound = slowed(lane_bind(), Delays(seed))
        assert made_by(named(program), bound, steps=5, pipeline=pipeline) == base(program, 5)


def test_a_micro_batch_is_staged_where_it_is_packed_in_time():
    trainer = PatientTrainer(5)
    assert made_by(named("grpo"), lane_bind(trainer), steps=5, pipeline="pipelined-boundary") == base("grpo", 5)
    assert trainer.ran_staged >= 4  # all but the first step's, which may be packed too late


def test_a_slow_feed_stages_nothing_and_trains_the_same():
    trainer = StagingTrainer()
    staged = []

    class Late(HashRollout):
        """The groups of a step come when the step before it is over."""

        def generate(self, *args, **kwargs):
            wait_until(lambda: trainer.applied >= len(self.asked))
            return super().generate(*args, **kwargs)

    real = trainer.stage_fwd_bwd
    trainer.stage_fwd_bwd = lambda micro_batch: staged.append(micro_batch.step) or real(micro_batch)
    made = made_by(named("grpo"), lane_bind(trainer, rollout=Late()), steps=4, pipeline="pipelined-boundary")
    assert made == base("grpo", 4)
    assert {*staged} <= {0}  # that of the first step may be there before anything trains


def test_a_stage_that_fails_on_the_way_is_sent_whole_and_not_tried_again():
    class Cut(PatientTrainer):
        tried = 0

        def stage_fwd_bwd(self, micro_batch):
            self.tried += 1
            raise ConnectionError("lost")

    trainer = Cut(5)
    assert made_by(named("grpo"), lane_bind(trainer), steps=5, pipeline="pipelined-boundary") == base("grpo", 5)
    assert (trainer.tried, trainer.ran_staged) == (1, 0)


def test_a_trainer_that_has_made_the_update_anyway_makes_one():
    class Hasty(StagingTrainer):
        def fwd_bwd(self, micro_batch, *, defer_update=False, **how):
            super().fwd_bwd(micro_batch, **how)

    trainer = Hasty()
    made = made_by(named("grpo"), lane_bind(trainer), steps=4, pipeline="pipelined-boundary")
    assert made == base("grpo", 4)
    assert trainer.calls.count("update") == 4


def test_control_another_seed_trains_something_else():
    assert made_by(named("grpo"), lane_bind(), steps=5, seed=1, pipeline=PIPES[0]) != base("grpo", 5)
