"""A plan printed as Python, and run: it makes what the executor makes of the same plan."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from lane_parts import PIPES, HashTrainer, StagingTrainer, lane_bind, made_by, no_lane_is_left

import steptrace
from steptrace.diag.running import StalledRunError
from steptrace.lang.reference import resolve
from steptrace.lower import lower
from steptrace.lower.emit import emit
from steptrace.passes import run_pipeline

PROGRAMS = ("grpo", "dr_grpo", "rloo", "reinforce_pp", "grpo_stream", "grpo_epochs")
OTHERS = ("pipelined-boundary-replayed", "pipeline-micro-batches", "fuse-update", "take-ahead{depth=1},defer-metrics")


@steptrace.op(takes=("groups",), gives="groups", reads=["host[k]"], writes=[])
def fewer(groups):
    """Leaves every third step nothing."""
    return [] if groups[0].step % 3 == 1 else groups


@steptrace.program(staleness=1)
def gaps(step, prompts: int = 4, samples: int = 3):
    """Steps without a micro-batch, a user's op, and a value carried from step to step."""
    step.dispatch(prompts=prompts, samples=samples)
    left = fewer(step.reward(step.take()))
    for mb in step.micro_batches(step.pack(step.advantages(left))):
        step.fwd_bwd(step.ref_logps(mb))
    step.update()
    metrics = step.get_metrics()
    step.sync_weights()
    step.commit()
    step.log(metrics)


def text_of(program: str, pipeline: str) -> str:
    traced = gaps.trace() if program == "gaps" else resolve(program)
    made = run_pipeline(traced, pipeline).schedule
    return emit(lower(made.program, source=made.source), f"{program} under {pipeline}")


def loaded(text: str) -> SimpleNamespace:
    space: dict[str, object] = {}
    exec(compile(text, "<emitted>", "exec"), space)
    return SimpleNamespace(**space)


def outcome(text: str, trainer, steps: int, **options):
    result = loaded(text).run(lane_bind(trainer, **others(text)), steps, stall_s=20.0, **options)
    records = [dict(record) for record in result.records]
    return result.params_digest, result.calls_digest, result.trained_groups_digest, records, result.steps


def others(text: str) -> dict[str, object]:
    return {"fewer": fewer} if '"fewer"' in text else {}


def driven(program: str, pipeline: str, trainer, steps: int):
    named = gaps.trace() if program == "gaps" else program
    made = made_by(named, lane_bind(trainer), steps=steps, pipeline=pipeline)
    return made.params, made.calls, made.groups, made.records, made.steps


def full(program: str) -> str:
    return f"{program}{{prompts=4, samples=3, staleness=1, save_every=2}}"


SLOW = pytest.mark.slow


@pytest.mark.parametrize("pipeline", ["", PIPES[0], PIPES[3], *(pytest.param(p, marks=SLOW) for p in PIPES[1:3])])
@pytest.mark.parametrize(
    "program", [*(pytest.param(name, marks=SLOW if name in PROGRAMS[1:4] else ()) for name in PROGRAMS), "gaps"]
)
def test_it_makes_what_the_executor_makes(program, pipeline, tmp_path):
    name = program if program == "gaps" else full(program)
    text = text_of(name, pipeline)
    for trainer in (HashTrainer, StagingTrainer):
        for steps in (0, 1, 3):
            assert outcome(text, trainer(), steps) == driven(name, pipeline, trainer(), steps)
    assert no_lane_is_left()


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", OTHERS)
def test_other_pipelines(pipeline):
    text = text_of(full("grpo"), pipeline)
    assert outcome(text, StagingTrainer(), 4) == driven(full("grpo"), pipeline, StagingTrainer(), 4)


def test_the_trainer_gets_the_same_calls():
    text, ours, theirs = text_of(full("grpo"), PIPES[0]), StagingTrainer(), StagingTrainer()
    outcome(text, ours, 3)
    driven(full("grpo"), PIPES[0], theirs, 3)
    trained = [call for call in ours.calls if not call.startswith(("get", "save"))]
    assert trained == [call for call in theirs.calls if not call.startswith(("get", "save"))]
    assert trained.count("update") == 3


def test_a_run_to_the_end_of_the_data_and_its_checkpoints(tmp_path):
    text = text_of(full("grpo"), PIPES[0])
    result = loaded(text).run(lane_bind(StagingTrainer()), epochs=1, out=tmp_path / "ours", stall_s=20.0)
    other = steptrace.run(
        full("grpo"), lane_bind(StagingTrainer()), epochs=1, pipeline=PIPES[0], out=tmp_path / "theirs", stall_s=20.0
    )
    assert (result.steps, result.params_digest) == (other.steps, other.params_digest)
    kept = [sorted(path.name for path in (tmp_path / who / "checkpoints").iterdir()) for who in ("ours", "theirs")]
    assert kept[0] == kept[1]


def test_control_the_text_decides_the_order():
    """Whatever is run is in the text: a call that is left out, a guard turned round, another operand are seen."""
    text = text_of(full("grpo"), "")
    wanted = driven(full("grpo"), "", HashTrainer(), 3)
    skipped = text.replace("for m in count():", "for m in count(1):")
    rarely = text.replace('loop.call("update", k)', 'k % 2 or loop.call("update", k)')
    operand = text.replace('loop.call("fwd_bwd", k, v["mb.2"]', 'loop.call("fwd_bwd", k, v["mb"]')
    for edited in (skipped, rarely, operand):
        assert edited != text
        assert outcome(edited, HashTrainer(), 3) != wanted


def test_control_a_signal_left_out_locks_the_lanes_up_and_ends():
    text = text_of(full("grpo"), PIPES[0])
    edited = text.replace('            loop.signal("pack", k)\n', "")
    assert edited != text
    with pytest.raises(StalledRunError, match="has waited for `pack` of step 0"):
        loaded(edited).run(lane_bind(StagingTrainer()), 2, stall_s=0.2)
    assert no_lane_is_left()


def test_a_failure_ends_every_lane_with_its_own_error():
    class Fails(StagingTrainer):
        def update(self):
            raise ZeroDivisionError("broken")

    with pytest.raises(ZeroDivisionError, match="broken") as info:
        outcome(text_of(full("grpo"), PIPES[0]), Fails(), 3)
    assert any("apply_deferred_update" in note for note in info.value.__notes__)
    assert no_lane_is_left()


def test_what_it_looks_like():
    """Each op under the line of the user, its guard, its waits and its signals."""
    text = text_of("grpo{staleness=1}", PIPES[0])
    for part in (
        "def lane_host(loop: Loop) -> None:",
        "def lane_packer(loop: Loop) -> None:",
        "        k = t + 1\n",
        "            # steptrace/programs/grpo.py:16  groups = step.take()\n"
        '            loop.wait("free", k - 2)  # capacity host\n'
        '            v["groups"], v["exists"] = loop.call("take", k)\n'
        '            loop.signal("take", k)\n',
        '            if (k + 1) % 10 == 0:\n                loop.call("save_checkpoint", k)\n',
        '    loop.kept["v0"] = loop.call("initial_sync", k)\n',
    ):
        assert part in text


def test_on_the_command_line(tmp_path):
    command = [str(Path(sys.executable).with_name("steptrace"))]
    opt = [*command, "opt", full("grpo"), "-p", PIPES[0], "--emit=py"]
    printed = subprocess.run(opt, capture_output=True, text=True, check=True).stdout
    assert loaded(printed).SCHEDULE == loaded(text_of(full("grpo"), PIPES[0])).SCHEDULE
    dumped = subprocess.run([*command, "dump", "grpo", "--emit=py"], capture_output=True, text=True, check=True).stdout
    assert loaded(dumped).SCHEDULE == loaded(dumped).SOURCE
