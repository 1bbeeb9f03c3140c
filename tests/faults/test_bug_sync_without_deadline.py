"""A sync whose receiver fails or hangs ends the run with what happened to the receiver, and can be tried again."""

from __future__ import annotations

import pytest
from fakes import HashRollout
from matrix_runs import no_lane_is_left

import steptrace
from steptrace.diag.running import LostRoundError, StalledRunError
from steptrace.run.sync_rounds import TRIES
from steptrace.testing.faults import Fault, inject
from steptrace.testing.hash_parts import hash_parts

PROGRAM = "grpo{staleness=1, prompts=4, samples=2, save_every=1}"
PIPELINES = {"": "sync_weights", "pipelined-boundary": "sync_weights", "async-everything": "apply_weights"}


class Receiver(HashRollout):
    """Refuses the weights of its third version, once or so many times; may keep that to itself."""

    def __init__(self, *, says: bool = True, times: int = 1):
        super().__init__()
        self.refused, self.says, self.times = 3, says, times

    def apply_weights(self, weights, version):
        if version == self.refused:
            self.times -= 1
            self.refused = 3 if self.times else -1
            if self.says:
                raise ConnectionError("the server answered 500")
            return
        super().apply_weights(weights, version)


def run(pipeline, *around, rollout=None, **options):
    bound = hash_parts(rollout=rollout or HashRollout())
    settings = {"stall_s": 60.0, "steps": 5, "stage_latch_s": 0} | options
    return steptrace.run(PROGRAM, bound, pipeline=pipeline, around=around, **settings)


def test_a_round_beside_the_step_that_the_receiver_refuses_once_is_made_again():
    wanted = run("")
    assert run("async-everything", rollout=Receiver()).params_digest == wanted.params_digest


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_the_receivers_error_is_the_runs_and_the_transfer_can_be_made_again(pipeline, tmp_path, quick_trees):
    beside = PIPELINES[pipeline] == "apply_weights"
    rollout = Receiver(times=TRIES + 1 if beside else 1)
    with pytest.raises((ConnectionError, LostRoundError)) as info:
        run(pipeline, rollout=rollout, out=tmp_path)
    assert "answered 500" in str(info.value.__cause__ if beside else info.value)
    told = [note.text for note in info.value.notes] if beside else info.value.__notes__
    assert ("in `dispatch` of step 4" if beside else "in `sync_weights` of step 2") in told[0]
    assert no_lane_is_left()
    assert rollout.held == {}, "nothing half open is left with the receiver"
    wanted = run("")
    assert run(pipeline, rollout=rollout, out=tmp_path, resume=True).params_digest == wanted.params_digest


@pytest.mark.parametrize("op", ["transfer_weights", "apply_weights"])
def test_a_receiver_that_hangs_is_told_of_within_the_limit(op):
    run("")  # whatever is made at first use is there
    with pytest.raises(StalledRunError) as info:
        run("async-everything", inject(Fault(op, 1, kind="hang")), stall_s=1.0)
    assert f"hang at `{op}` of step 1" in " ".join(info.value.__notes__)
    assert no_lane_is_left()


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_control_an_error_that_the_receiver_keeps_to_itself_is_found_where_its_weights_are_needed(pipeline):
    with pytest.raises(KeyError) as info:
        run(pipeline, rollout=Receiver(says=False))
    assert "in `dispatch` of step 4" in info.value.__notes__[0]
