"""Parts in plain numpy: a trainer whose parameters record what it was given, and a rollout that samples from them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from steptrace.lang.records import Completion, MicroBatch, Prompt


class HashTrainer:
    """Parameters are one float64 vector; an update mixes in everything the step was given, in order."""

    def __init__(self) -> None:
        self.params = {"w": np.linspace(0.0, 1.0, 4)}
        self.applied = 0
        self.grads = np.zeros(4)
        self.calls: list[str] = []
        self.steps: list[int] = []

    def fwd_bwd(self, micro_batch: MicroBatch) -> None:
        self.calls.append(f"fwd_bwd {micro_batch.step}.{micro_batch.index}")
        self.steps.append(micro_batch.step)
        text = b"".join(np.ascontiguousarray(micro_batch.arrays[name]).tobytes() for name in sorted(micro_batch.arrays))
        seed = int.from_bytes(hashlib.sha256(text).digest()[:8], "little")
        self.grads = self.grads * 0.5 + np.random.default_rng(seed).normal(size=4)

    def update(self) -> None:
        self.calls.append("update")
        self.params = {"w": self.params["w"] + 0.1 * self.grads}
        self.grads = np.zeros(4)
        self.applied += 1

    def get_metrics(self) -> dict[str, float]:
        self.calls.append("get_metrics")
        return {"loss": float(self.params["w"].sum())}

    def weights(self) -> tuple[dict[str, np.ndarray], int]:
        return {"w": self.params["w"].copy()}, self.applied

    def save_checkpoint(self, directory: Path) -> None:
        self.calls.append("save_checkpoint")
        directory.mkdir(parents=True)
        np.save(directory / "w.npy", self.params["w"])
        (directory / "applied.json").write_text(json.dumps(self.applied))

    def restore_checkpoint(self, directory: Path) -> None:
        self.params = {"w": np.load(directory / "w.npy")}
        self.applied = json.loads((directory / "applied.json").read_text())


class HashRollout:
    """Completions are a function of the weights of the version asked for, the prompt and the key."""

    def __init__(self) -> None:
        self.held: dict[int, np.ndarray] = {}
        self.asked: list[int] = []
        self.most_held = 0
        self.given: list[int] = []

    def apply_weights(self, weights: Any, version: int) -> None:
        assert version not in self.held
        self.given.append(version)
        self.held[version] = np.asarray(weights["w"])
        self.most_held = max(self.most_held, len(self.held))

    def drop_weights(self, version: int) -> None:
        del self.held[version]

    def generate(self, prompts: list[Prompt], samples: int, *, version: int, key: Any) -> list[list[Completion]]:
        import jax

        self.asked.append(version)
        weights = self.held[version]
        seed = np.asarray(jax.random.key_data(key)).tobytes() + weights.tobytes()
        made = []
        for prompt in prompts:
            digest = hashlib.sha256(seed + prompt.id.encode()).digest()
            rng = np.random.default_rng(int.from_bytes(digest[:8], "little"))
            made.append([self._completion(rng) for _ in range(samples)])
        return made

    def _completion(self, rng: np.random.Generator) -> Completion:
        length = int(rng.integers(1, 4))
        tokens = rng.integers(3, 9, size=length).astype(np.int32)
        return Completion(tokens, -rng.random(length).astype(np.float32), " ".join(map(str, tokens)), True)


class NewestRollout(HashRollout):
    """Generates with the newest weights it was given, whatever version it is asked for."""

    def generate(self, prompts: list[Prompt], samples: int, *, version: int, key: Any) -> list[list[Completion]]:
        return super().generate(prompts, samples, version=max(self.held), key=key)


class CharTokenizer:
    """Characters as ids."""

    vocab_size, pad_id, stop_id = 128, 0, 1

    def encode(self, text: str) -> np.ndarray:
        return np.array([ord(letter) % 128 for letter in text], np.int32)

    def decode(self, tokens: Any) -> str:
        return " ".join(map(str, tokens))


class HalfReference:
    """Log-probs of a frozen policy: a constant on every token of a sequence but its first."""

    def logps(self, micro_batch: MicroBatch) -> np.ndarray:
        inside = (micro_batch.arrays["segment_ids"] > 0) & (micro_batch.arrays["positions"] > 0)
        return np.where(inside, np.float32(-0.5), np.float32(0))


def length_reward(prompt: Prompt, completions: list[str]) -> list[float]:
    """The sum of the tokens."""
    return [float(sum(map(int, text.split()))) for text in completions]


def parts(**other: Any) -> dict[str, Any]:
    """Fresh parts for every role of GRPO, replaced by those given."""
    from steptrace.run.data.packing import Packer
    from steptrace.run.data.prompts import ListPrompts

    bound = {
        "trainer": HashTrainer(),
        "rollout": HashRollout(),
        "reference": HalfReference(),
        "reward": length_reward,
        "prompts": ListPrompts([Prompt(f"p:{index}", f"prompt {index}") for index in range(10)]),
        "tokenizer": CharTokenizer(),
        "packer": Packer(rows=2, length=32, pad_id=0),
    }
    return bound | other
