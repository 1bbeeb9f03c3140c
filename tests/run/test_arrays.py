"""What the trainer's loss reads is compared with the program before anything runs."""

from __future__ import annotations

import pytest
from fakes import HashTrainer, parts

import steptrace
from steptrace.diag.training import MissingArrayError
from steptrace.programs.grpo import grpo
from steptrace.run.trainer import GrpoLoss


class Reading(HashTrainer):
    def __init__(self, *reads: str) -> None:
        super().__init__()
        self.reads = reads

    def info(self):
        return {"reads": self.reads}


@steptrace.program()
def unanchored(step):
    step.dispatch(prompts=3, samples=2)
    for mb in step.micro_batches(step.pack(step.advantages(step.reward(step.take())))):
        step.fwd_bwd(mb)
    step.update()
    step.sync_weights()
    step.commit()


@pytest.mark.parametrize("pipeline", ["", "defer-update"])
def test_an_array_that_no_op_makes_is_missed_before_step_0(pipeline):
    bound = parts(trainer=Reading("advantages", "ref_logps"))
    with pytest.raises(
        MissingArrayError, match="reads `ref_logps`, which the micro-batch of `fwd_bwd` does not have"
    ) as found:
        steptrace.run(unanchored, bound, steps=1, pipeline=pipeline)
    assert found.value.loc.source() == "step.fwd_bwd(mb)"
    assert [note.text for note in found.value.notes] == ["the ops before it have made advantages, rewards"]
    assert bound["trainer"].calls == []
    assert bound["rollout"].asked == []


def test_control_arrays_that_ops_make_are_there():
    steptrace.run(unanchored, parts(trainer=Reading("advantages")), steps=1)
    program = grpo.trace(prompts=3, samples=2)
    assert steptrace.run(program, parts(trainer=Reading("advantages", "ref_logps")), steps=1).steps == 1


def test_the_loss_reads_the_reference_where_it_has_a_kl_penalty():
    assert GrpoLoss(kl_coef=0.1).reads == ("advantages", "ref_logps")
    assert GrpoLoss().reads == ("advantages",)
