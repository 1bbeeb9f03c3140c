"""What JAX keeps for the caller's thread holds on every lane."""

from __future__ import annotations

import threading

import jax
import numpy as np
import pytest
from lane_parts import StagingTrainer, lane_bind

import steptrace
from steptrace.run.contexts import SETTINGS, callers

PROGRAM = "grpo{prompts=2, samples=2, staleness=1}"


def seen_on_lanes(look) -> dict[str, object]:
    """What is seen where rewards are made, on another lane, and where metrics are logged, on the caller's."""
    seen: dict[str, object] = {}

    def reward(prompt, completions):
        seen[threading.current_thread().name] = look()
        return [1.0, 2.0]

    class Log:
        def log(self, step, record):
            seen["caller"] = look()

        def close(self):
            pass

    bound = lane_bind(StagingTrainer(), reward=reward, tracker=Log())
    steptrace.run(PROGRAM, bound, steps=2, pipeline="pipelined-boundary", stall_s=60.0)
    assert {*seen} == {"steptrace-packer", "caller"}
    return seen


def mesh() -> jax.sharding.Mesh:
    return jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))


def test_a_mesh():
    with jax.set_mesh(mesh()):
        seen = seen_on_lanes(jax.sharding.get_mesh)
    assert seen == {"steptrace-packer": mesh(), "caller": mesh()}
    assert jax.sharding.get_mesh().empty


def test_a_width_and_a_device():
    device = jax.devices()[0]

    def look():
        return jax.numpy.arange(2.0).dtype.name, jax.default_device.value

    with jax.enable_x64(True), jax.default_device(device):
        seen = seen_on_lanes(look)
    assert seen["steptrace-packer"] == seen["caller"] == ("float64", device)
    assert seen_on_lanes(look)["steptrace-packer"] == ("float32", None)


@pytest.mark.parametrize("name", ["debug_nans", "log_compiles", "numpy_rank_promotion"])
def test_other_settings(name):
    setting = getattr(jax, name)
    other = "raise" if name == "numpy_rank_promotion" else not setting.value
    with setting(other):
        entered = callers()
    found = []
    assert setting.value != other

    def look():
        with entered():
            found.append(setting.value)
        found.append(setting.value)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [other, setting.value]


def test_compiling_that_is_off():
    with jax.disable_jit():
        seen = seen_on_lanes(lambda: bool(jax.config.jax_disable_jit))
    assert seen == {"steptrace-packer": True, "caller": True}


def test_every_setting_is_known_here():
    assert [name for name in SETTINGS if not hasattr(getattr(jax, name, None), "value")] == []


def test_control_a_thread_of_its_own_has_none_of_it():
    """So a lane that did not enter the caller's contexts would not have them."""
    seen = []
    with jax.set_mesh(mesh()), jax.enable_x64(True):
        thread = threading.Thread(target=lambda: seen.append((jax.sharding.get_mesh().empty, jax.enable_x64.value)))
        thread.start()
        thread.join()
    assert seen == [(True, False)]
