"""Keys are functions of (seed, op, step, micro-batch) and of nothing else."""

import itertools
import subprocess
import sys

import jax
import numpy as np
import pytest

from steptrace.run.rng import key_for

COORDINATES = [*itertools.product((0, 1), ("generate", "dropout"), (0, 1, 2), (0, 1))]


def words(*coordinate):
    return tuple(jax.random.key_data(key_for(*coordinate)).tolist())


def test_every_coordinate_has_its_own_key():
    assert len({words(*coordinate) for coordinate in COORDINATES}) == len(COORDINATES)


def test_control_a_key_without_the_op_name_is_shared_between_ops():
    assert words(0, "same", 1, 0) == words(0, "same", 1, 0)
    assert len({words(seed, "same", step, micro) for seed, _, step, micro in COORDINATES}) < len(COORDINATES)


def test_the_order_of_the_calls_does_not_matter():
    forward = {coordinate: words(*coordinate) for coordinate in COORDINATES}
    backward = {coordinate: words(*coordinate) for coordinate in reversed(COORDINATES)}
    assert forward == backward


def test_step_and_micro_batch_are_not_interchangeable():
    assert words(0, "generate", 1, 0) != words(0, "generate", 0, 1)


def test_the_micro_batch_defaults_to_the_first():
    assert words(0, "generate", 4) == words(0, "generate", 4, 0)


def test_seeds_beyond_32_bits_differ_and_negative_ones_are_taken():
    assert len({words(seed, "generate", 0) for seed in (0, 1, 1 << 32, 1 << 33, -1)}) == 5


def test_the_key_is_the_fold_in_chain_it_says():
    key = jax.random.key(0, impl="threefry2x32")
    for word in (7, 0, 0xFB0663BB, 11, 2):
        key = jax.random.fold_in(key, np.uint32(word))
    assert words(7, "generate", 11, 2) == tuple(jax.random.key_data(key).tolist())


def test_draws_do_not_change_with_the_default_generator():
    expected = words(7, "generate", 11)
    with jax.default_prng_impl("rbg"):
        assert words(7, "generate", 11) == expected


@pytest.mark.slow
def test_another_process_with_another_hash_seed_makes_the_same_key():
    code = "import jax; from steptrace.run.rng import key_for as k; print(jax.random.key_data(k(7, 'generate', 11)))"
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONHASHSEED": "1", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert run.stdout.strip() == str(jax.random.key_data(key_for(7, "generate", 11)))
