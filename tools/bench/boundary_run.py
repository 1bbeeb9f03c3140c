"""The step boundary on JAX: one trainer, four schedules of one program, their runs interleaved."""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from steptrace.lang.records import Completion, Group, MicroBatch, Prompt
from steptrace.run.api import run
from steptrace.run.data.packing import Packer
from steptrace.run.data.prompts import ListPrompts
from steptrace.run.models.decoder import Decoder, DecoderConfig
from steptrace.run.trainer import GrpoLoss

from .arms import ARMS, program_text
from .virtual_boundary import Parameters
from .watched import Payloads, Seen, WatchedTrainer, boundary_figures, payload_loss

VOCABULARY, PROMPT_TOKENS, COMPLETION_TOKENS, SAMPLES = 64, 8, 16, 4
LENGTH = PROMPT_TOKENS + COMPLETION_TOKENS
SKIPPED = 2
"""Steps at the beginning of each run that are not counted."""


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
    """

    megabytes: float
    micro_batches: int = 4
    rows: int = 64
    dim: int = 128
    host_ms: float = 20.0
    steps: int = 8
    rounds: int = 3
    in_flight: int = 1
    replay: bool = False


@dataclass
class Arm:
    """What was measured of an arm.

    Attributes:
      idle_ms, step_ms: of each step that counts.
      busy_s, whole_s: time that the device worked, and time in all.
      digests: of parameters and of calls, of each run.
      phases: seconds by kind of op, of each step that counts.
      seen: what the device did, by run.
      fetches: seconds of the metrics behind the update.
      stages: of each run.
      remarks: of the last run.
    """

    idle_ms: list[float] = field(default_factory=list)
    step_ms: list[float] = field(default_factory=list)
    busy_s: float = 0.0
    whole_s: float = 0.0
    digests: set[tuple[str, str]] = field(default_factory=set)
    phases: list[dict[str, float]] = field(default_factory=list)
    seen: list[list[Seen]] = field(default_factory=list)
    fetches: list[float] = field(default_factory=list)
    stages: list[int] = field(default_factory=list)
    remarks: tuple[str, ...] = ()


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


@dataclass(frozen=True)
class _Packer(Packer):
    """Packs, and makes the payload of each micro-batch."""

    payloads: Payloads | None = None

    def pack(self, groups: Sequence[Group], *, step: int) -> list[MicroBatch]:
        packed = super().pack(groups, step=step)
        assert self.payloads is not None, "a packer of the benchmark has payloads"
        for micro_batch in packed:
            self.payloads.make(step, micro_batch.index)
        return packed


class _Tracker:
    """Logs with as much work as was asked for, and keeps the time of each kind of op."""

    def __init__(self, host_ms: float) -> None:
        self.host_ms = host_ms
        self.steps: list[dict[str, float]] = []

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        host_work(self.host_ms)

    def phases(self, step: int, seconds: Mapping[str, float]) -> None:
        self.steps.append(dict(seconds))

    def close(self) -> None:
        pass


_BLOCK = bytes(1 << 20)


def host_work(milliseconds: float) -> None:
    """Work of the host for so long; other threads run meanwhile."""
    end = time.perf_counter() + milliseconds / 1e3
    while time.perf_counter() < end:
        hashlib.sha256(_BLOCK[: 1 << 17]).digest()


def measured(work: Workload, target: str) -> dict[str, Arm]:
    """Run every arm, one after the other, as often as asked for; all with one trainer, set back in between."""
    trainer = _trainer(work)
    arms = {name: Arm() for name in ARMS}
    with tempfile.TemporaryDirectory() as folder:
        start = Path(folder) / "start"
        trainer.begin(Payloads(work.megabytes), reads_flag=False)
        trainer.save_checkpoint(start)
        _once(trainer, "", work, target, steps=1)  # compiles
        for _ in range(work.rounds):
            for name, pipeline in ARMS.items():
                trainer.restore_checkpoint(start)
                _measure(arms[name], trainer, pipeline, work, target)
    return arms


def _trainer(work: Workload) -> WatchedTrainer:
    import optax

    model = Decoder(DecoderConfig(VOCABULARY, dim=work.dim, layers=2, max_length=LENGTH), seed=0)
    return WatchedTrainer(model, optax.adam(1e-3), payload_loss(GrpoLoss()), in_flight=work.in_flight)


def _measure(arm: Arm, trainer: WatchedTrainer, pipeline: str, work: Workload, target: str) -> None:
    """One run of an arm, added to what is known of it."""
    result, seen, tracker = _once(trainer, pipeline, work, target, work.steps)
    found = boundary_figures(seen, SKIPPED)
    arm.idle_ms += found["idle_ms"]
    arm.step_ms += found["step_ms"]
    arm.busy_s += found["busy_s"]
    arm.whole_s += found["whole_s"]
    arm.digests.add((result.params_digest, result.calls_digest))
    arm.phases += tracker.steps[SKIPPED:]
    arm.seen.append([one for one in seen if one.step >= SKIPPED])
    arm.fetches += trainer.fetches[SKIPPED:]
    arm.stages.append(trainer.stages)
    arm.remarks = result.remarks


def _once(
    trainer: WatchedTrainer, pipeline: str, work: Workload, target: str, steps: int
) -> tuple[Any, list[Seen], _Tracker]:
    payloads, tracker = Payloads(work.megabytes), _Tracker(work.host_ms)
    trainer.begin(payloads, reads_flag=work.replay)

    def reward(prompt: Prompt, completions: Sequence[str]) -> list[float]:
        host_work(work.host_ms / prompts)
        return [int(text) / VOCABULARY for text in completions]

    prompts = work.micro_batches * work.rows // SAMPLES
    bind = {
        "trainer": trainer,
        "rollout": HashRollout(),
        "reference": FlatReference(),
        "reward": reward,
        "prompts": ListPrompts([Prompt(f"p{index}", f"{index:08d}") for index in range(4 * prompts)]),
        "tokenizer": ByteTokenizer(),
        "packer": _Packer(rows=work.rows, length=LENGTH, payloads=payloads),
        "tracker": tracker,
    }
    try:
        program = program_text(prompts, SAMPLES)
        result = run(program, bind, steps=steps, pipeline=pipeline, target=target)
    finally:
        seen = trainer.watcher.close()
    return result, seen, tracker


def fitted(base: Arm, micro_batches: int) -> Parameters:
    """The parameters of the model in virtual time, each a figure of the base arm."""
    seen = [one for run in base.seen for one in run]
    trained = [one for one in seen if one.kind == "fwd_bwd"]
    phase: dict[str, float] = defaultdict(float)
    for kind in {kind for step in base.phases for kind in step}:
        phase[kind] = median(step.get(kind, 0.0) for step in base.phases)
    return Parameters(
        micro_batch_s=median(one.end - one.start for one in trained if one.index > 0 or micro_batches == 1),
        update_s=median(one.end - one.start for one in seen if one.kind == "update"),
        ship_s=median(one.returned - one.called for one in trained if one.index == 0),
        link_s=median(max(0.0, one.arrived - one.returned) for one in trained if one.index == 0),
        call_s=median(one.returned - one.sent for one in seen if one.kind == "update"),
        fetch_s=median(base.fetches),
        sync_s=phase["sync_weights"],
        data_s=sum(phase[kind] for kind in ("dispatch", "take", "reward", "advantages", "pack")),
        report_s=sum(phase[kind] for kind in ("on_step_begin", "commit", "log", "on_step_end", "free")),
    )
