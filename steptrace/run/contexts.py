"""What JAX keeps for each thread, brought from the caller of a run to the threads of its lanes.

``with jax.set_mesh(mesh):`` and ``with jax.enable_x64(True):`` hold for the thread that they are entered on. Which lane
an op runs on is no matter of its author, so every lane has what the caller of the run has. A legacy ``with mesh:`` and
contexts made by `jax.make_user_context` are not among them; Python's own context variables are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import jax

SETTINGS = (
    "default_device",
    "enable_x64",
    "default_matmul_precision",
    "default_prng_impl",
    "enable_custom_prng",
    "threefry_partitionable",
    "legacy_prng_key",
    "numpy_dtype_promotion",
    "numpy_rank_promotion",
    "softmax_custom_jvp",
    "debug_nans",
    "debug_infs",
    "debug_key_reuse",
    "check_tracer_leaks",
    "enable_checks",
    "log_compiles",
    "explain_cache_misses",
    "transfer_guard_host_to_device",
    "transfer_guard_device_to_device",
    "transfer_guard_device_to_host",
)
"""Settings of JAX that are contexts of a thread, by their name in `jax`; not every version has all."""


def callers() -> Callable[[], AbstractContextManager[None]]:
    """What the calling thread has; the result enters the same on the thread that calls it."""
    mesh = jax.sharding.get_mesh()
    wanted = [(setting, setting.value) for setting in _settings()]
    uncompiled = _compiles_nothing()

    @contextmanager
    def entered() -> Iterator[None]:
        with ExitStack() as stack:
            for setting, value in wanted:
                if setting.value != value:
                    stack.enter_context(setting(value))
            if uncompiled != _compiles_nothing():
                stack.enter_context(jax.disable_jit(uncompiled))
            if mesh != jax.sharding.get_mesh():
                stack.enter_context(jax.set_mesh(mesh))
            yield

    return entered


def _settings() -> list[Any]:
    """The settings that this version of JAX has."""
    found = [getattr(jax, name, None) for name in SETTINGS]
    return [setting for setting in found if callable(setting) and hasattr(setting, "value")]


def _compiles_nothing() -> bool:
    return bool(getattr(jax.config, "jax_disable_jit", False))
