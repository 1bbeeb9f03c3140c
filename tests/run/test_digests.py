"""Digests by which runs are compared: equal for equal runs, and sensitive to each bit and to the order."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fakes import HashRollout, HashTrainer, parts

import steptrace
from steptrace.diag.binding import PartResultError
from steptrace.lang.records import GroupId, MicroBatch
from steptrace.programs.grpo import grpo
from steptrace.run.digest import EMPTY, CallLog, array_hash, chain, tree_digest
from steptrace.run.manifest import model_fingerprint

KEYS = (((GroupId("a", 0), 0), (GroupId("a", 0), 1)), ((GroupId("b", 0), 0),))


def micro_batch(**changes) -> MicroBatch:
    arrays = {
        "tokens": np.arange(8, dtype=np.int32).reshape(2, 4),
        "loss_mask": np.ones((2, 4), np.float32),
        "ref_logps": jnp.full((2, 4), -0.5),
    }
    return replace(MicroBatch(3, 1, arrays, KEYS), **changes)


def digest(*calls: tuple[str, MicroBatch | None]) -> str:
    log = CallLog()
    for verb, given in calls:
        log.record(verb, given)
    return log.settle()


def flipped(name: str, row: int, column: int, bit: int) -> MicroBatch:
    """The micro-batch with one bit of one array flipped."""
    made = micro_batch()
    array = np.array(made.arrays[name])
    array.view(np.uint32)[row, column] ^= np.uint32(1 << bit)
    return replace(made, arrays={**made.arrays, name: array})


BASE = digest(("fwd_bwd", micro_batch()))


@pytest.mark.parametrize("name", ["tokens", "loss_mask", "ref_logps"])
@pytest.mark.parametrize("bit", [0, 22, 31])
@pytest.mark.parametrize(("row", "column"), [(0, 0), (1, 3)])
def test_one_bit_of_an_input_changes_the_digest(name, bit, row, column):
    assert digest(("fwd_bwd", flipped(name, row, column, bit))) != BASE


@pytest.mark.parametrize(
    "changes",
    [
        {"step": 4},
        {"index": 2},
        {"last": True},
        {"keys": KEYS[:1]},
        {"keys": (KEYS[1], KEYS[0])},
        {"arrays": {}},
        {"arrays": {**micro_batch().arrays, "old_logps": np.zeros((2, 4), np.float32)}},
        {"arrays": {**micro_batch().arrays, "tokens": np.arange(8, dtype=np.int32).reshape(4, 2)}},
        {"arrays": {**micro_batch().arrays, "tokens": np.arange(8, dtype=np.int64).reshape(2, 4)}},
        {"arrays": {**micro_batch().arrays, "loss_mask": -np.zeros((2, 4), np.float32)}},
    ],
)
def test_what_else_of_a_micro_batch_counts(changes):
    assert digest(("fwd_bwd", micro_batch(**changes))) != BASE


def test_names_of_arrays_count():
    made = micro_batch()
    swapped = {**made.arrays, "loss_mask": made.arrays["ref_logps"], "ref_logps": made.arrays["loss_mask"]}
    assert digest(("fwd_bwd", replace(made, arrays=swapped))) != BASE


def test_control_the_order_of_names_and_where_an_array_lies_do_not_count():
    made = micro_batch()
    assert digest(("fwd_bwd", replace(made, arrays=dict(reversed(made.arrays.items()))))) == BASE
    host = {name: np.asarray(array) for name, array in made.arrays.items()}
    device = {name: jnp.asarray(array) for name, array in made.arrays.items()}
    striped = {name: np.asfortranarray(array) for name, array in host.items()}
    for arrays in (host, device, striped):
        assert digest(("fwd_bwd", replace(made, arrays=arrays))) == BASE


def test_verb_order_and_number_of_calls_count():
    one, other = micro_batch(), micro_batch(index=2)
    digests = [
        digest(("fwd_bwd", one), ("fwd_bwd", other), ("update", None)),
        digest(("fwd_bwd", other), ("fwd_bwd", one), ("update", None)),
        digest(("fwd_bwd", one), ("update", None), ("fwd_bwd", other)),
        digest(("fwd_bwd", one), ("fwd_bwd", other)),
        digest(("fwd_bwd", one), ("old_logps", other), ("update", None)),
        digest(("fwd_bwd", one), ("update", None)),
        digest(("update", None)),
        digest(),
    ]
    assert len(set(digests)) == len(digests)
    assert digests[-1] == EMPTY


def test_where_it_is_settled_does_not_count():
    log = CallLog()
    for verb, given in (("fwd_bwd", micro_batch()), ("update", None)):
        log.record(verb, given)
        log.settle()
    assert log.settle() == digest(("fwd_bwd", micro_batch()), ("update", None))


def test_a_log_goes_on_from_a_digest():
    log = CallLog(BASE)
    log.record("update")
    assert log.settle() == digest(("fwd_bwd", micro_batch()), ("update", None))


def test_a_host_buffer_may_be_used_again_before_the_log_is_settled():
    made = micro_batch()
    log = CallLog()
    log.record("fwd_bwd", made)
    made.arrays["tokens"][:] = 0
    assert log.settle() == BASE


def test_a_buffer_that_the_trainer_gave_away_is_named():
    made = micro_batch()
    log = CallLog()
    log.record("fwd_bwd", made)
    made.arrays["ref_logps"].delete()
    with pytest.raises(PartResultError, match="donated"):
        log.settle()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.zeros(2, np.float32), np.zeros(2, np.int32)),
        (np.zeros((2, 1)), np.zeros((1, 2))),
        (np.zeros(2), -np.zeros(2)),
        (np.float32(1), np.ones(1, np.float32)),
        (np.zeros(0), np.zeros(1)),
        (jnp.ones(2, jnp.bfloat16), jnp.ones(2, jnp.float16)),
        (jax.random.key(0), jax.random.key(1)),
        (jax.random.key(0), jax.random.key_data(jax.random.key(0))),
        (jax.random.key(0, impl="rbg"), jax.random.key(0, impl="unsafe_rbg")),
    ],
)
def test_arrays_that_differ_have_other_hashes(one, other):
    assert array_hash(one) != array_hash(other)


def test_equal_keys_have_equal_hashes():
    assert array_hash(jax.random.split(jax.random.key(3))) == array_hash(jax.random.split(jax.random.key(3)))


def test_entries_of_a_chain_do_not_run_together():
    assert chain(EMPTY, "ab", "c") != chain(EMPTY, "a", "bc")
    assert chain(EMPTY, "ab", "") != chain(EMPTY, "", "ab")


def test_a_tree_is_known_by_its_paths_and_leaves():
    tree = {"a": {"w": np.ones(2)}, "b": [np.zeros(2)]}
    others = [
        {"a": {"w": np.ones(2)}, "b": [np.ones(2)]},
        {"a": {"v": np.ones(2)}, "b": [np.zeros(2)]},
        {"a": {"w": np.zeros(2)}, "b": [np.ones(2)]},
        {"a": {"w": np.ones(2)}},
        {"a": {"w": np.ones(2, np.float32)}, "b": [np.zeros(2)]},
    ]
    assert tree_digest({"b": [np.zeros(2)], "a": {"w": np.ones(2)}}) == tree_digest(tree)
    assert tree_digest(jax.tree.map(np.array, tree)) == tree_digest(tree)
    assert len({tree_digest(other) for other in (tree, *others)}) == 6


def test_a_model_is_known_by_shapes_and_not_by_values():
    tree = {"w": np.ones((2, 3), np.float32), "scale": 1.0}
    assert model_fingerprint(tree) == model_fingerprint({"w": jnp.zeros((2, 3)), "scale": 2.0})
    for other in ({"w": np.ones((3, 2), np.float32), "scale": 1.0}, {"w": np.ones((2, 3)), "scale": 1.0}):
        assert model_fingerprint(other) != model_fingerprint(tree)


PROGRAM = grpo.trace(prompts=3, samples=2)
FIGURES = ("params_digest", "calls_digest", "trained_groups_digest")


def figures(seed: int = 0, **bound) -> tuple[str, ...]:
    result = steptrace.run(PROGRAM, parts(**bound), steps=4, seed=seed)
    return tuple(getattr(result, name) for name in FIGURES)


def test_equal_seeds_give_equal_runs():
    assert figures() == figures()


def test_another_seed_gives_another_run():
    assert all(one != other for one, other in zip(figures(), figures(seed=1), strict=True))


def test_seeds_of_numpy_are_seeds():
    assert figures(seed=np.int64(3)) == figures(seed=3)


def test_control_one_token_of_one_completion_shows_in_the_calls():
    class Other(HashRollout):
        def generate(self, prompts, samples, *, version, key):
            made = super().generate(prompts, samples, version=version, key=key)
            if version == 2:
                tokens = made[0][0].tokens.copy()
                tokens[0] ^= 1
                made[0][0] = replace(made[0][0], tokens=tokens)
            return made

    plain, other = figures(), figures(rollout=Other())
    assert plain[1] != other[1]
    assert plain[2] == other[2]  # the groups are the same


def test_the_digest_of_groups_knows_their_order(tmp_path):
    one = chain(chain(EMPTY, "a", "0"), "b", "0")
    assert one != chain(chain(EMPTY, "b", "0"), "a", "0")
    result = steptrace.run(PROGRAM, parts(), steps=2, out=tmp_path)
    digest = EMPTY
    import json

    for line in (tmp_path / "trained_groups.jsonl").read_text().splitlines():
        for prompt, draw in json.loads(line)["groups"]:
            digest = chain(digest, prompt, str(draw))
    assert digest == result.trained_groups_digest


def test_the_digest_of_parameters_is_of_those_that_the_trainer_ends_with():
    trainer = HashTrainer()
    result = steptrace.run(PROGRAM, parts(trainer=trainer), steps=3)
    assert result.params_digest == tree_digest(trainer.params)
