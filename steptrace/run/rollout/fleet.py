"""Several engines as one rollout: weights go to all of them or to none."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any

import jax

from steptrace.diag.running import UnpublishedWeightsError
from steptrace.lang.parts import Rollout
from steptrace.lang.records import Completion, Prompt
from steptrace.run.contexts import callers


class Fleet:
    """Engines that share the prompts of a step, each at work at the same time as the others.

    A round of weights is for all engines or for none. An engine that has ``pause()`` and ``resume()`` is paused while
    a round lasts, and resumed however it ends. When an engine fails, those that took the version are told to drop it,
    the error comes through with the number of the engine in its notes, and what was served before is served on; the
    round may be tried again. Only a version that every engine has confirmed is generated with.

    What an engine is given depends on the number of engines: engine i of n gets every n-th prompt from i on, and a key
    of its own.

    Args:
      engines: rollouts.
    """

    def __init__(self, engines: Sequence[Rollout]) -> None:
        assert engines, "a fleet has an engine"
        self._engines = tuple(engines)
        self._confirmed: set[int] = set()

    def apply_weights(self, weights: Any, version: int) -> None:
        """Give a version to every engine; what one of them raises comes through once no engine holds it."""
        with ExitStack() as paused:
            for number, engine in enumerate(self._engines):
                if callable(getattr(engine, "pause", None)):
                    paused.callback(engine.resume)  # type: ignore[attr-defined]
                    self._told(number, engine.pause)  # type: ignore[attr-defined]
            for number, engine in enumerate(self._engines):
                try:
                    self._told(number, engine.apply_weights, weights, version)
                except BaseException:
                    for other in self._engines[: number + 1]:
                        with suppress(Exception):
                            other.drop_weights(version)
                    raise
        self._confirmed.add(version)

    def drop_weights(self, version: int) -> None:
        """Let every engine forget a version."""
        self._confirmed.discard(version)
        for number, engine in enumerate(self._engines):
            self._told(number, engine.drop_weights, version)

    def drain(self) -> None:
        """Wait until nothing runs behind calls that returned, on any engine."""
        for number, engine in enumerate(self._engines):
            drain = getattr(engine, "drain", None)
            if callable(drain):
                self._told(number, drain)

    def generate(
        self, prompts: Sequence[Prompt], samples: int, *, version: int, key: jax.Array
    ) -> list[Sequence[Completion]]:
        """The completions of each prompt, in the order of the prompts.

        Raises:
          UnpublishedWeightsError: not every engine has confirmed the version. What an engine raises comes through
            once the others have come back.
        """
        if version not in self._confirmed:
            known = ", ".join(map(str, sorted(self._confirmed))) or "none"
            raise UnpublishedWeightsError(
                f"version {version} is not confirmed by every engine (those that are: {known})"
            )
        dealt = [prompts[number :: len(self._engines)] for number in range(len(self._engines))]
        entered = callers()

        def engine_s(number: int) -> Sequence[Sequence[Completion]]:
            own = key if number == 0 else jax.random.fold_in(key, number)
            generate = self._engines[number].generate
            with entered():
                return self._told(number, generate, dealt[number], samples, version=version, key=own)

        with ThreadPoolExecutor(len(self._engines), thread_name_prefix="steptrace-engine") as pool:
            calls = [pool.submit(engine_s, number) for number in range(len(self._engines)) if dealt[number]]
        made: list[Sequence[Completion]] = [()] * len(prompts)
        for number, call in enumerate(calls):
            made[number :: len(self._engines)] = call.result()
        return made

    def _told(self, number: int, call: Any, *args: Any, **how: Any) -> Any:
        """Call an engine; an error of it says which one it was."""
        try:
            return call(*args, **how)
        except Exception as error:
            error.add_note(f"engine {number} of {len(self._engines)}, in {getattr(call, '__name__', call)}")
            raise
