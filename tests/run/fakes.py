"""Parts in plain numpy for tests of runs: those of ``steptrace.testing.hash_parts``, and a rollout that is wrong."""

from __future__ import annotations

from typing import Any

from steptrace.lang.records import Completion, Prompt
from steptrace.run.data.packing import Packer
from steptrace.testing.hash_parts import (
    CharTokenizer,
    HalfReference,
    HashRollout,
    HashTrainer,
    hash_parts,
    length_reward,
)


class NewestRollout(HashRollout):
    """Generates with the newest weights it was given, whatever version it is asked for."""

    def generate(self, prompts: list[Prompt], samples: int, *, version: int, key: Any) -> list[list[Completion]]:
        return super().generate(prompts, samples, version=max(self.held), key=key)


def parts(**other: Any) -> dict[str, Any]:
    """Fresh parts for every role of GRPO, replaced by those given: a trainer without a verb to spare, wide packing."""
    return hash_parts(trainer=HashTrainer(), packer=Packer(rows=2, length=32, pad_id=0)) | other


__all__ = ["CharTokenizer", "HalfReference", "HashRollout", "HashTrainer", "NewestRollout", "length_reward", "parts"]
