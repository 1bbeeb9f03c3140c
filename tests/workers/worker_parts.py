"""Parts for workers under test; a worker imports them by name."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time

import numpy as np


class NeedsTwo(Exception):
    """Cannot be made again from its arguments."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


class Mute(Exception):
    """Has no text."""

    def __str__(self):
        raise RuntimeError("no text")


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

    def append(self, value) -> int:
        self.log.append(value)
        return len(self.log)

    def let_go_late(self, array):
        """Leaves the array to garbage that is no longer young."""
        ring = [array]
        ring.append(ring)
        gc.collect()
        gc.collect()
        return len(ring)

    def grow(self, array):
        self.total += 1
        return self.total, 2 * array

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

    def fail_with_two(self) -> None:
        raise NeedsTwo(1, 2)

    def die(self, number: int = signal.SIGKILL) -> None:
        os.kill(os.getpid(), number)
        time.sleep(60)

    def die_behind_a_fork(self) -> None:
        """What it has forked holds the connection open until another one tells it to end."""
        if os.fork():
            self.die()
        time.sleep(60)
        os._exit(0)

    def fork(self) -> int:
        """Leave a process behind."""
        forked = os.fork()
        if not forked:
            time.sleep(60)
            os._exit(0)
        return forked

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


class Jax:
    """Puts what it is given on the device."""

    def __init__(self):
        import jax

        self.jax = jax
        self.held = None

    def put(self, value) -> None:
        self.held = self.jax.device_put(value)

    def put_copy(self, value) -> None:
        self.held = self.jax.device_put(np.array(value, copy=True))

    def use(self, value) -> None:
        """A computation that reads the value, dispatched and not waited for."""
        product = self.jax.numpy.ones((1500, 1500))
        for _ in range(4):
            product = product @ product / 1500
        self.held = (self.jax.numpy.asarray(value) + product[0, 0]).sum()

    def use_compiled(self, value) -> None:
        """The same in one compiled program, which is given the value as it is."""

        def compute(value):
            product = self.jax.numpy.ones((1500, 1500))
            for _ in range(4):
                product = product @ product / 1500
            return (value + product[0, 0]).sum()

        self.held = self.jax.jit(compute)(value)

    def reuse_memory_blindly(self) -> None:
        """Receive into the same memory each time, whoever reads it still."""
        from steptrace.workers.rooms import Rooms

        room = Rooms().take(4_000_000)
        Rooms.take = lambda rooms, size: room[:size]

    def read(self) -> float:
        return float(np.asarray(self.held, np.float64).sum())

    def first(self):
        return self.held.ravel()[:1]

    def drop(self) -> None:
        self.held = None

    def draw(self, key):
        return self.jax.random.normal(key, (3,)), self.jax.random.split(key)[0]

    def kind(self, value) -> str:
        return type(value).__name__

    def settings(self, name: str) -> object:
        return self.jax.config.values[name]


def hold_the_lock(seconds: float) -> None:
    """Compute in C without letting any other thread of this process run."""
    import ctypes
    import time

    text = ctypes.create_string_buffer(b"a" * 30000)
    compare = ctypes.PyDLL(None).strspn
    end = time.monotonic() + seconds
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e6)
    try:
        while time.monotonic() < end:
            compare(text, b"ba")
    finally:
        sys.setswitchinterval(interval)


class Locked:
    """Computes with the interpreter's lock held."""

    def compute(self, seconds: float) -> str:
        hold_the_lock(seconds)
        return "done"
