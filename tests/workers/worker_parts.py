"""Parts for workers under test; a worker imports them by name."""

from __future__ import annotations

import os
import signal
import sys
import time

import numpy as np


class Box:
    """Keeps what it is given, and can be told to misbehave."""

    size = 3
    label = "box"

    def __init__(self, start: int = 0, *, step: int = 1) -> None:
        self.total, self.step = start, step
        self.kept: object = None
        self.log: list[object] = []

    def info(self):
        return {"capabilities": ["add"], "jax": "jax" in sys.modules}

    def add(self, number: int) -> int:
        self.total += number * self.step
        return self.total

    def echo(self, *values, **named):
        return (values, named) if named or len(values) != 1 else values[0]

    def nothing(self) -> None:
        return None

    def keep(self, value) -> None:
        self.kept = value

    def forget(self) -> None:
        self.kept = None

    def kept_sum(self) -> float:
        return float(np.asarray(self.kept, np.float64).sum())

    def writable(self, value) -> bool:
        return bool(value.flags.writeable)

    def loaded_jax(self) -> bool:
        return "jax" in sys.modules

    def fail(self, error: Exception) -> None:
        raise error

    def die(self, number: int = signal.SIGKILL) -> None:
        os.kill(os.getpid(), number)
        time.sleep(60)

    def nap(self, seconds: float) -> float:
        time.sleep(seconds)
        return seconds

    def function(self):
        return {"inner": [lambda: 0]}

    def environment(self, name: str):
        return os.environ.get(name)

    def getpid(self) -> int:
        return os.getpid()


def failing(message: str):
    raise LookupError(message)


def ending(code: int):
    os._exit(code)
