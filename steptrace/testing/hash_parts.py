"""Parts in plain numpy, for tests of runs: a trainer whose parameters record what it was given, and what goes with it.

Two runs that train the same, in the same order, end with the same parameters, bit for bit; any other two do not. A
step takes well under a millisecond, and nothing here asks for a device.
"""

from __future__ import annotations

import hashlib
import json
import time
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

    def fwd_bwd(self, micro_batch: MicroBatch) -> Any:
        """Mix a micro-batch into the gradient: its arrays, and how many came before it."""
        self.calls.append(f"fwd_bwd {micro_batch.step}.{micro_batch.index}")
        self.steps.append(micro_batch.step)
        text = b"".join(np.ascontiguousarray(micro_batch.arrays[name]).tobytes() for name in sorted(micro_batch.arrays))
        seed = int.from_bytes(hashlib.sha256(text).digest()[:8], "little")
        self.grads = self.grads * 0.5 + np.random.default_rng(seed).normal(size=4)

    def update(self) -> None:
        """Apply the gradient."""
        self.calls.append("update")
        self.params = {"w": self.params["w"] + 0.1 * self.grads}
        self.grads = np.zeros(4)
        self.applied += 1

    def get_metrics(self) -> dict[str, float]:
        """The sum of the parameters, as a loss."""
        self.calls.append("get_metrics")
        return {"loss": float(self.params["w"].sum())}

    def weights(self) -> tuple[dict[str, np.ndarray], int]:
        """A copy of the parameters, and how many updates were applied."""
        return {"w": self.params["w"].copy()}, self.applied

    def save_checkpoint(self, directory: Path) -> None:
        """Write parameters and version."""
        self.calls.append("save_checkpoint")
        self._write(self.params["w"], self.applied, directory)

    def restore_checkpoint(self, directory: Path) -> None:
        """Read what ``save_checkpoint`` wrote."""
        self.params = {"w": np.load(directory / "w.npy")}
        self.applied = json.loads((directory / "applied.json").read_text())

    def _write(self, params: np.ndarray, applied: int, directory: Path) -> None:
        directory.mkdir(parents=True)
        np.save(directory / "w.npy", params)
        (directory / "applied.json").write_text(json.dumps(applied))


class StagingTrainer(HashTrainer):
    """The same with all that a trainer may do, and its refusals.

    Args:
      deferring: whether it can hold an update back.
    """

    def __init__(self, *, deferring: bool = True) -> None:
        super().__init__()
        self.deferring = deferring
        self.staged: tuple[int, MicroBatch] | None = None
        self.requests = 0
        self.held = False
        self.ran_staged = 0

    def info(self) -> dict[str, Any]:
        """What it can do."""
        return {"capabilities": {"stage_before_update": self.deferring, "fused_update": True}}

    def fwd_bwd(
        self,
        micro_batch: MicroBatch,
        *,
        apply_optimizer: bool = False,
        defer_update: bool = False,
        wait_for_update: bool = True,
    ) -> dict[str, bool] | None:
        """Mix a micro-batch in; make the update too, or hold it back, when asked to."""
        assert not self.held, "another micro-batch while an update is held back"
        super().fwd_bwd(micro_batch)
        if not apply_optimizer:
            return None
        if defer_update:
            self.held = True
        else:
            self.update()
        return {"update_deferred": defer_update}

    def wait_for_device(self) -> float:
        """Nothing is ever left to do."""
        return 0.0

    def stage_fwd_bwd(self, micro_batch: MicroBatch) -> int:
        """Hold a micro-batch for a later call."""
        assert self.staged is None, "one micro-batch is staged at a time"
        self.requests += 1
        self.staged = (self.requests, micro_batch)
        return self.requests

    def fwd_bwd_staged(self, request: int, **how: bool) -> dict[str, bool] | None:
        """Mix in the micro-batch that is held."""
        assert self.staged is not None, "nothing is staged"
        assert self.staged[0] == request, "another request is staged"
        (_, micro_batch), self.staged = self.staged, None
        self.ran_staged += 1
        return self.fwd_bwd(micro_batch, **how)

    def apply_deferred_update(self) -> None:
        """Make the update that is held back."""
        assert self.held, "nothing is held back"
        self.held = False
        self.update()

    def update(self) -> None:
        """Apply the gradient."""
        assert not self.held, "an update while one is held back"
        super().update()

    def start_metrics(self) -> float:
        """Set the step's loss aside."""
        assert not self.held, "metrics while an update is held back"
        return float(self.params["w"].sum())

    def fetch_metrics(self, aside: float) -> dict[str, float]:
        """The loss that was set aside."""
        return {"loss": aside}

    def copy_weights(self) -> tuple[dict[str, np.ndarray], int]:
        """A copy that later updates do not touch."""
        return self.weights()

    def weights(self) -> tuple[dict[str, np.ndarray], int]:
        """A copy of the parameters, and how many updates were applied."""
        assert not self.held, "weights while an update is held back"
        return super().weights()

    def save_checkpoint(self, directory: Path) -> None:
        """Write parameters and version."""
        assert not self.held, "a checkpoint while an update is held back"
        super().save_checkpoint(directory)

    def snapshot_checkpoint(self) -> tuple[np.ndarray, int]:
        """What a checkpoint holds, to be written later."""
        assert not self.held, "a snapshot while an update is held back"
        return self.params["w"].copy(), self.applied

    def write_checkpoint(self, snapshot: tuple[np.ndarray, int], directory: Path) -> None:
        """Write a snapshot."""
        self._write(*snapshot, directory)


class SlowCloser(StagingTrainer):
    """A trainer whose last call of a step takes so long that the first micro-batch of the next one is packed."""

    def fwd_bwd(self, micro_batch: MicroBatch, **how: bool) -> dict[str, bool] | None:
        """Mix a micro-batch in."""
        if micro_batch.last:
            time.sleep(0.1)
        return super().fwd_bwd(micro_batch, **how)


class StageLoser(SlowCloser):
    """The same, and whatever is shipped to it ahead gets lost."""

    def stage_fwd_bwd(self, micro_batch: MicroBatch) -> int:
        """Lose a micro-batch; raises `ConnectionError`."""
        raise ConnectionError("the link for stages is down")


class HashRollout:
    """Completions are a function of the weights of the version asked for, the prompt and the key."""

    def __init__(self) -> None:
        self.held: dict[int, np.ndarray] = {}
        self.asked: list[int] = []
        self.most_held = 0
        self.given: list[int] = []

    def apply_weights(self, weights: Any, version: int) -> None:
        """Hold the weights of a version."""
        assert version not in self.held, "a version is given once"
        self.given.append(version)
        self.held[version] = np.asarray(weights["w"])
        self.most_held = max(self.most_held, len(self.held))

    def drop_weights(self, version: int) -> None:
        """Let go of a version."""
        del self.held[version]

    def generate(self, prompts: list[Prompt], samples: int, *, version: int, key: Any) -> list[list[Completion]]:
        """Completions of one to three tokens; ``key`` is a key of JAX, or its words as a numpy array."""
        self.asked.append(version)
        seed = _words(key).tobytes() + self.held[version].tobytes()
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


def _words(key: Any) -> np.ndarray:
    if isinstance(key, np.ndarray):
        return key
    import jax

    return np.asarray(jax.random.key_data(key))


class CharTokenizer:
    """Characters as ids."""

    vocab_size, pad_id, stop_id = 128, 0, 1

    def encode(self, text: str) -> np.ndarray:
        """One id a character, int32."""
        return np.array([ord(letter) % 128 for letter in text], np.int32)

    def decode(self, tokens: Any) -> str:
        """The ids as numbers."""
        return " ".join(map(str, tokens))


class HalfReference:
    """Log-probs of a frozen policy: a constant on every token of a sequence but its first."""

    def logps(self, micro_batch: MicroBatch) -> np.ndarray:
        """Minus one half on the tokens that have one before them, float32."""
        inside = (micro_batch.arrays["segment_ids"] > 0) & (micro_batch.arrays["positions"] > 0)
        return np.where(inside, np.float32(-0.5), np.float32(0))


def length_reward(prompt: Prompt, completions: list[str]) -> list[float]:
    """The sum of the tokens."""
    return [float(sum(map(int, text.split()))) for text in completions]


def hash_parts(**other: Any) -> dict[str, Any]:
    """Fresh parts for every role of GRPO, replaced by those given: ten prompts, and one row of 20 tokens a micro-batch.

    So the steps of a run have different numbers of micro-batches.
    """
    from steptrace.run.data.packing import Packer
    from steptrace.run.data.prompts import ListPrompts

    bound = {
        "trainer": StagingTrainer(),
        "rollout": HashRollout(),
        "reference": HalfReference(),
        "reward": length_reward,
        "prompts": ListPrompts([Prompt(f"p:{index}", f"prompt {index}") for index in range(10)]),
        "tokenizer": CharTokenizer(),
        "packer": Packer(rows=1, length=20, pad_id=0),
    }
    return bound | other
