"""The board of published weights: which step published which version, and which are still needed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from steptrace.diag.binding import PartResultError
from steptrace.diag.running import UnpublishedWeightsError
from steptrace.lang.parts import Rollout
from steptrace.run.digest import tree_digest


class WeightBoard:
    """Weights by the step that published them; step -1 is the initial sync. Safe to use from several lanes.

    A step whose update was skipped publishes an alias: the same version again, which the rollout is not sent twice.

    Args:
      rollout: whom weights are published to, or None when the program generates nothing.
    """

    def __init__(self, rollout: Rollout | None) -> None:
        self._rollout = rollout
        self._versions: dict[int, int] = {}
        self._weights: dict[int, Any] = {}
        self._changing = threading.RLock()
        self._turn = threading.Condition()
        self._round = threading.Lock()
        self._samplers = self._due = 0

    def publish(self, step: int, weights: Any, version: int) -> None:
        """Make ``weights`` those that ``step`` published. A version has one content and is sent once.

        Raises:
          PartResultError: the version is held already, with other weights.
        """
        with self._round:  # one round at a time, whoever publishes
            self._publish(step, weights, version)

    def _publish(self, step: int, weights: Any, version: int) -> None:
        if version not in self._weights:
            with self._publishing():
                if self._rollout is not None:
                    self._rollout.apply_weights(weights, version)
            with self._changing:
                self._weights[version], self._versions[step] = weights, version
        elif tree_digest(weights) != tree_digest(self._weights[version]):
            earlier = max(index for index, held in self._versions.items() if held == version)
            who = f"step {earlier}" if earlier >= 0 else "the initial sync"
            raise PartResultError(
                f"the trainer gave other weights the version {version} that {who} has published",
                help="`weights()` returns a copy, and a version that moves with each update that was applied",
            )
        with self._changing:
            self._versions[step] = version

    def version(self, step: int) -> int:
        """The version that ``step`` published; raises `UnpublishedWeightsError`."""
        with self._changing:
            if step not in self._versions:
                known = ", ".join(map(str, sorted(self._versions))) or "none"
                raise UnpublishedWeightsError(f"no sync of step {step} has published weights (steps with one: {known})")
            return self._versions[step]

    def holds(self, version: int) -> bool:
        """Whether a version was published and not dropped since."""
        with self._changing:
            return version in self._weights

    def newest(self) -> int:
        """The last step that published."""
        with self._changing:
            assert self._versions, "the initial sync runs before anything is generated"
            return max(self._versions)

    def published_since(self, version: int, step: int) -> int:
        """How many versions that are still held were published behind ``version``, up to and with ``step``."""
        with self._changing:
            return len({held for at, held in self._versions.items() if at <= step and held > version})

    @contextmanager
    def sampling(self, *, alone: bool) -> Iterator[None]:
        """Inside, the rollout samples; ``alone`` keeps that apart from publishing, and lets what is due go first."""
        if not alone:
            yield
            return
        with self._turn:
            self._turn.wait_for(lambda: not self._due)
            self._samplers += 1
        try:
            yield
        finally:
            with self._turn:
                self._samplers -= 1
                self._turn.notify_all()

    @contextmanager
    def _publishing(self) -> Iterator[None]:
        """Inside, weights are given to the rollout: once those who sample alone, and what the rollout still has
        running behind calls that returned, are through."""
        with self._turn:
            self._due += 1
        try:  # from here on: an interrupt while this waits must not leave those waiting who sample
            with self._turn:
                self._turn.wait_for(lambda: not self._samplers)
            drain = getattr(self._rollout, "drain", None)
            if callable(drain):
                drain()
            yield
        finally:
            with self._turn:
                self._due -= 1
                self._turn.notify_all()

    def forget_before(self, step: int) -> None:
        """Drop what steps before ``step`` published, unless a later step published it again."""
        with self._changing:
            gone = {self._versions.pop(old) for old in sorted(self._versions) if old < step}
            for version in sorted(gone - {*self._versions.values()}):
                del self._weights[version]
                if self._rollout is not None:
                    self._rollout.drop_weights(version)

    def clear(self) -> None:
        """Drop everything."""
        self.forget_before(max(self._versions, default=-1) + 1)

    def held(self) -> dict[int, int]:
        """Version by publishing step, for all that is still held."""
        with self._changing:
            return dict(self._versions)

    def weights(self, version: int) -> Any:
        """The weights of a held version."""
        return self._weights[version]
