"""Real JAX parts: a small decoder that is sampled and trained, under schedules as in program order, bit for bit."""

from __future__ import annotations

import optax
import pytest

import steptrace
from steptrace.lang.records import Prompt
from steptrace.run.data.packing import Packer
from steptrace.run.data.prompts import ListPrompts
from steptrace.run.models.decoder import Decoder, DecoderConfig
from steptrace.run.rollout import FrozenReference, JaxRollout
from steptrace.run.trainer import GrpoLoss, JaxTrainer

PIPELINES = (
    "pipelined-boundary",
    "pipelined-boundary-staged-after",
    "pipelined-boundary-unstaged",
    "async-everything",
)
NUMBERS = (0, 1, 2, 5)


class Letters:
    """Letters as ids."""

    vocab_size, pad_id, stop_id = 16, 0, 1

    def encode(self, text):
        return [2 + ord(letter) % 14 for letter in text]

    def decode(self, tokens):
        return " ".join(map(str, tokens))


def bound(**other):
    """Fresh parts: trainer, rollout and reference of one small model."""
    model = Decoder(DecoderConfig(vocab_size=16, dim=16, layers=1, heads=2, max_length=16))
    made = {
        "trainer": JaxTrainer(model, optax.adam(1e-2), GrpoLoss(kl_coef=0.1)),
        "rollout": JaxRollout(model, Letters(), buckets=(4,), max_new_tokens=6, batch_size=4),
        "reference": FrozenReference(model),
        "reward": lambda prompt, completions: [float(len(set(text.split()))) for text in completions],
        "prompts": ListPrompts([Prompt(f"p:{index}", "abcd"[: 2 + index % 3]) for index in range(12)]),
        "tokenizer": Letters(),
        "packer": Packer(rows=2, length=18),
    }
    return made | other


def made_by(program: str, pipeline: str, steps: int = 4, **other):
    result = steptrace.run(program, bound(**other), steps=steps, pipeline=pipeline, stall_s=120.0)
    digests = (result.params_digest, result.calls_digest, result.trained_groups_digest)
    return digests, [dict(record) for record in result.records], result


@pytest.mark.slow
@pytest.mark.parametrize("program", ["grpo", "grpo_stream"])
def test_every_pipeline_trains_the_same(program):
    text = f"{program}{{prompts=4, samples=3, staleness=1}}"
    digests, records, _ = made_by(text, "")
    assert len({record["micro_batches"] for record in records}) > 1
    for pipeline in PIPELINES:
        assert made_by(text, pipeline)[:2] == (digests, records)


@pytest.mark.slow
@pytest.mark.parametrize("program", ["grpo", "grpo_stream"])
def test_every_number_of_steps_trains_the_same(program, tmp_path):
    """With one trainer, set back in between, so that it compiles once."""
    parts = bound()
    parts["trainer"].save_checkpoint(tmp_path / "start")

    def made(steps: int, pipeline: str):
        parts["trainer"].restore_checkpoint(tmp_path / "start")
        text = f"{program}{{prompts=4, samples=3, staleness=1}}"
        result = steptrace.run(text, parts, steps=steps, pipeline=pipeline, stall_s=120.0, stage_latch_s=0.0)
        assert result.steps == steps
        digests = (result.params_digest, result.calls_digest, result.trained_groups_digest)
        return digests, [dict(record) for record in result.records]

    wanted = {steps: made(steps, "") for steps in NUMBERS}
    assert len({digests for digests, _ in wanted.values()}) == len(NUMBERS)  # or nothing would be compared
    for pipeline in PIPELINES:
        assert {steps: made(steps, pipeline) for steps in NUMBERS} == wanted


@pytest.mark.slow
def test_a_fused_update_trains_the_same_here():
    """The update is the same compiled leaf, so that even this law, which may be recompiled, is exact."""
    text = "grpo{prompts=4, samples=3, staleness=1}"
    assert made_by(text, "fuse-update")[:2] == made_by(text, "")[:2]


@pytest.mark.slow
def test_control_generating_with_the_newest_weights_is_seen():
    class Newest(JaxRollout):
        def generate(self, prompts, samples, *, version, key):
            import time

            time.sleep(0.2)
            return super().generate(prompts, samples, version=max(self.info()["versions"]), key=key)

    text = "grpo{prompts=4, samples=3, staleness=1}"
    model = Decoder(DecoderConfig(vocab_size=16, dim=16, layers=1, heads=2, max_length=16))
    newest = Newest(model, Letters(), buckets=(4,), max_new_tokens=6, batch_size=4)
    assert made_by(text, "pipelined-boundary", rollout=newest)[0] != made_by(text, "")[0]
