"""Parts that workers make, with the failures that tests ask for; and what is left of processes behind a run."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from contextlib import contextmanager
from pathlib import Path

from steptrace.run.remote.hosting import hosted
from steptrace.testing.hash_parts import HalfReference, HashRollout, HashTrainer, StagingTrainer, hash_parts
from steptrace.workers import remote

PIPES = (
    "pipelined-boundary",
    "pipelined-boundary-staged-after",
    "pipelined-boundary-unstaged",
    "async-everything",
)


class Patient(StagingTrainer):
    """Its training calls take a little, so that the next step's first micro-batch is packed meanwhile."""

    wait_s = 0.02

    def fwd_bwd(self, micro_batch, **how):
        time.sleep(self.wait_s)
        return super().fwd_bwd(micro_batch, **how)

    def reset(self):
        """As it was made."""
        self.__init__()

    def stage_fwd_bwd(self, micro_batch):
        return {"request": super().stage_fwd_bwd(micro_batch), "device_wait_s": None}

    def fwd_bwd_staged(self, request, **how):
        return super().fwd_bwd_staged(request["request"], **how)


class Due:
    """Ready at a moment, as the result of a device is that works beside the calls."""

    def __init__(self, moment):
        self.moment = moment

    def block_until_ready(self):
        time.sleep(max(0.0, self.moment - time.perf_counter()))
        return self

    def is_ready(self):
        return time.perf_counter() >= self.moment


class Tokens(Patient):
    """A device takes 20 ms for a micro-batch and 10 for an update, one behind the other; the calls return before."""

    wait_s = 0.0

    def __init__(self):
        super().__init__()
        self.free = 0.0
        self.last_call_token, self.last_update_token = None, Due(0.0)

    def fwd_bwd(self, micro_batch, *, apply_optimizer=False, **how):
        self.last_call_token = self._work(0.02)
        return super().fwd_bwd(micro_batch, apply_optimizer=apply_optimizer, **how)

    def update(self):
        super().update()
        self.last_update_token = self._work(0.01)

    def _work(self, seconds):
        self.free = max(self.free, time.perf_counter()) + seconds
        return Due(self.free)


class Failing(Patient):
    """Fails in a way, once, at a call for a step.

    Args:
      verb: the method; "" for none.
      step: the step.
      way: "raise", "lost", "kill" or "hang".
    """

    def __init__(self, verb="", step=0, way=""):
        super().__init__()
        self.fails, self.step, self.way = verb, step, way

    def arm(self, verb, step, way="raise"):
        """As new, to fail so."""
        self.__init__(verb, step, way)

    def fwd_bwd(self, micro_batch, **how):
        self._fail("fwd_bwd", micro_batch.step)
        return super().fwd_bwd(micro_batch, **how)

    def stage_fwd_bwd(self, micro_batch):
        self._fail("stage_fwd_bwd", micro_batch.step)
        return super().stage_fwd_bwd(micro_batch)

    def update(self):
        self._fail("update", self.applied)
        super().update()

    def _fail(self, verb, step):
        if (verb, step) == (self.fails, self.step):
            self.fails = ""
            fail(self.way)


class FailingRollout(HashRollout):
    """A rollout that fails once, in ``generate`` or ``apply_weights``, at a version."""

    def __init__(self, verb="", version=0, way="raise"):
        super().__init__()
        self.arm(verb, version, way)

    def arm(self, verb, version, way="raise"):
        """To fail so."""
        self.fails, self.version, self.way = verb, version, way

    def generate(self, prompts, samples, *, version, key):
        self._fail("generate", version)
        return super().generate(prompts, samples, version=version, key=key)

    def apply_weights(self, weights, version):
        self._fail("apply_weights", version)
        super().apply_weights(weights, version)

    def _fail(self, verb, version):
        if (verb, version) == (self.fails, self.version):
            self.fails = ""
            fail(self.way)


class FailingReference(HalfReference):
    """A reference that fails once, at a step; -1 for none."""

    def __init__(self, step=-1, way="raise"):
        self.arm("logps", step, way)

    def arm(self, verb, step, way="raise"):
        """To fail so."""
        self.step, self.way = step, way

    def logps(self, micro_batch):
        if micro_batch.step == self.step:
            self.step = -1
            fail(self.way)
        return super().logps(micro_batch)


class SlowRollout(HashRollout):
    """Takes its time to receive weights, and writes down in a file which ones it has."""

    def __init__(self, file):
        super().__init__()
        self.file = Path(file)

    def apply_weights(self, weights, version):
        time.sleep(0.1)
        super().apply_weights(weights, version)
        with self.file.open("a") as lines:
            lines.write(f"{version}\n")


class Dropping(Patient):
    """Loses the second micro-batch of a step."""

    def fwd_bwd(self, micro_batch, **how):
        if (micro_batch.step, micro_batch.index) == (1, 1):
            return {"update_deferred": False}
        return super().fwd_bwd(micro_batch, **how)


class Swapping(HashTrainer):
    """Adds the first two micro-batches of each step in the other order."""

    def __init__(self):
        super().__init__()
        self.first = None

    def fwd_bwd(self, micro_batch):
        if micro_batch.index == 0 and not micro_batch.last:
            self.first = micro_batch
            return
        super().fwd_bwd(micro_batch)
        if self.first is not None:
            super().fwd_bwd(self.first)
            self.first = None


class NoKey(HashRollout):
    """A rollout that takes no key."""

    def generate(self, prompts, samples):
        return []


class Both(Patient, HalfReference):
    """A trainer that is its own reference."""


def fail(way):
    """Fail in that way."""
    if way == "raise":
        raise ZeroDivisionError("what was asked for")
    if way == "lost":
        raise TimeoutError("what was asked for")
    if way == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if way == "hang":
        time.sleep(3600)


def broken_factory():
    """Makes nothing."""
    raise LookupError("no such part")


def bind(trainer=None, rollout=None, reference=None, **other):
    """Parts for GRPO, those with arrays written down for other processes."""
    remotes = {
        "trainer": trainer or remote(Patient),
        "rollout": rollout or remote(HashRollout),
        "reference": reference or remote(HalfReference),
    }
    return hash_parts(**remotes, **other)


def digests(result):
    """What must not depend on the target."""
    return result.params_digest, result.calls_digest, result.trained_groups_digest


@contextmanager
def shared_workers(**given):
    """The parts of `bind`, for several runs."""
    with hosted(bind(**given)) as parts:
        yield parts


def children():
    """Process ids of this process's children."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            found |= {int(pid) for pid in (task / "children").read_text().split()}
    return found
