"""The workload of the benchmarks of the step boundary, and parts that take no time of their own."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from steptrace.lang.records import Completion, MicroBatch, Prompt
from steptrace.run.models.decoder import Decoder, DecoderConfig
from steptrace.run.trainer import GrpoLoss

from .watched import WatchedTrainer, payload_loss

VOCABULARY, PROMPT_TOKENS, COMPLETION_TOKENS, SAMPLES = 64, 8, 16, 4
LENGTH = PROMPT_TOKENS + COMPLETION_TOKENS


@dataclass(frozen=True, slots=True)
class Workload:
    """What is run.

    Attributes:
      megabytes: shipped with each micro-batch beside its own arrays.
      micro_batches: of a step.
      rows: of a micro-batch, each a prompt with its completion.
      dim: features of the model.
      host_ms: work on the host for the reward, and again for the log, in milliseconds a step.
      steps: of a run.
      rounds: how often each arm is run.
      in_flight: training calls that may be dispatched and not computed; a call beyond them waits.
      replay: whether the update reads a flag of the step's last micro-batch first.
      log_ms: work of the log in the arms of `LOG_ARMS`, in milliseconds a step; 0 for none of these arms.
    """

    megabytes: float
    micro_batches: int = 6
    rows: int = 64
    dim: int = 128
    host_ms: float = 20.0
    steps: int = 8
    rounds: int = 3
    in_flight: int = 1
    replay: bool = False
    log_ms: float = 0.0


class HashRollout:
    """Completions that are a function of the weights, the prompt and the key; no model samples them."""

    def __init__(self) -> None:
        self._held: dict[int, bytes] = {}

    def apply_weights(self, weights: Any, version: int) -> None:
        """Keep what stands for these weights."""
        import jax
        import numpy as np

        leaves = jax.tree.leaves(weights)
        self._held[version] = hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in leaves)).digest()

    def drop_weights(self, version: int) -> None:
        """Forget a version."""
        del self._held[version]

    def generate(self, prompts: Sequence[Prompt], samples: int, *, version: int, key: Any) -> list[list[Completion]]:
        """Completions of each prompt."""
        import jax
        import numpy as np

        seed = self._held[version] + np.asarray(jax.random.key_data(key)).tobytes()
        made = []
        for prompt in prompts:
            digest = hashlib.sha256(seed + prompt.id.encode()).digest()
            rng = np.random.default_rng(int.from_bytes(digest[:8], "little"))
            drawn = rng.integers(2, VOCABULARY, size=(samples, COMPLETION_TOKENS), dtype=np.int32)
            logps = np.full(COMPLETION_TOKENS, -np.log(VOCABULARY - 2), np.float32)
            made.append([Completion(tokens, logps, str(int(tokens[0])), True) for tokens in drawn])
        return made


class ByteTokenizer:
    """Bytes as ids, as many as a prompt may have."""

    vocab_size, pad_id, stop_id = VOCABULARY, 0, 1

    def encode(self, text: str) -> list[int]:
        """The text's first bytes, filled up."""
        return [2 + byte % (VOCABULARY - 2) for byte in text.encode()[:PROMPT_TOKENS].ljust(PROMPT_TOKENS, b".")]

    def decode(self, tokens: Sequence[int]) -> str:
        """The ids."""
        return " ".join(map(str, tokens))


class FlatReference:
    """Log-probs of a frozen policy: a constant on every token of a sequence but its first."""

    def logps(self, micro_batch: MicroBatch) -> Any:
        """float32 [rows, length]."""
        import numpy as np

        inside = (micro_batch.arrays["segment_ids"] > 0) & (micro_batch.arrays["positions"] > 0)
        return np.where(inside, np.float32(-4), np.float32(0))


def watched_trainer(kind: type[WatchedTrainer], work: Workload) -> WatchedTrainer:
    """The trainer of the workload, of a kind that is watched."""
    import optax

    model = Decoder(DecoderConfig(VOCABULARY, dim=work.dim, layers=2, max_length=LENGTH), seed=0)
    return kind(model, optax.adam(1e-3), payload_loss(GrpoLoss()), in_flight=work.in_flight)


_BLOCK = bytes(1 << 20)


def host_work(milliseconds: float) -> None:
    """Work of the host for so long; other threads run meanwhile."""
    end = time.perf_counter() + milliseconds / 1e3
    while time.perf_counter() < end:
        hashlib.sha256(_BLOCK[: 1 << 17]).digest()
