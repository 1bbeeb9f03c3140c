"""One item of many that never comes: whoever waits gives up at its deadline and names what is missing."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from fakes import HashRollout
from matrix_runs import no_lane_is_left

import steptrace
from steptrace.diag.binding import PartResultError
from steptrace.diag.data import TakeTimeoutError
from steptrace.diag.running import StalledRunError
from steptrace.lang.records import Completion, Group, GroupId, Prompt
from steptrace.run.data import GroupQueue
from steptrace.testing.faults import Fault, inject
from steptrace.testing.hash_parts import hash_parts

PROGRAM = "grpo{staleness=1, prompts=4, samples=2}"
MANY = 512


def group(name: GroupId) -> Group:
    """A group of one sample, scored."""
    completion = Completion(np.array([6], np.int32), np.zeros(1, np.float32), "6", True)
    prompt = Prompt(name.prompt, name.prompt)
    return Group(name, 3, prompt, np.array([5], np.int32), (completion,), 0, None, np.ones(1, np.float32))


def delivered(lost: int | None) -> GroupQueue:
    """A queue to which a producer delivers all groups of step 3 but one."""
    queue = GroupQueue()
    for step in range(3):
        queue.expect(step, [])
        queue.take(step)
        queue.commit(step)
    names = [GroupId(f"p:{index}", 0) for index in range(MANY)]
    queue.expect(3, names)

    def produce() -> None:
        for index, name in enumerate(names):
            if index != lost:
                queue.put(3, group(name))

    thread = threading.Thread(target=produce)
    thread.start()
    thread.join()
    return queue


def test_the_wait_ends_and_names_the_item_and_the_step():
    with pytest.raises(TakeTimeoutError) as info:
        delivered(lost=377).take(3, timeout_s=0.05)
    assert "step 3" in info.value.message
    said = " ".join([info.value.message, *(note.text for note in info.value.notes)])
    assert "p:377" in said
    assert "p:376" not in said


def test_control_all_that_came_are_served():
    groups = delivered(lost=None).take(3, timeout_s=0.05)
    assert groups is not None
    assert len(groups) == MANY


def run(*around, pipeline="pipelined-boundary", rollout=None, **options):
    bound = hash_parts(rollout=rollout or HashRollout())
    return steptrace.run(PROGRAM, bound, steps=4, pipeline=pipeline, around=around, **({"stall_s": 60.0} | options))


@pytest.mark.parametrize("pipeline", ["", "pipelined-boundary"])
def test_a_rollout_that_forgets_one_completion_ends_the_run_with_its_prompt(pipeline):
    class Forgets(HashRollout):
        def generate(self, prompts, samples, **how):
            made = super().generate(prompts, samples, **how)
            return [made[0], made[1][:-1], *made[2:]] if len(self.asked) == 3 else made

    with pytest.raises(PartResultError, match=r"1 completions for prompt 'p:\d', not 2"):
        run(pipeline=pipeline, rollout=Forgets())
    assert no_lane_is_left()


def test_a_rollout_that_never_comes_back_is_named_by_those_who_wait():
    run()  # whatever is made at first use is there
    with pytest.raises(StalledRunError) as info:
        run(inject(Fault("dispatch", 2, kind="hang")), stall_s=1.0)
    assert "of step 2 has waited for 1 s on lane host" in info.value.message
    assert "hang at `dispatch` of step 2" in " ".join(info.value.__notes__)
    assert no_lane_is_left()
