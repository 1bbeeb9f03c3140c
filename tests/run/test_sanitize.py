"""What users' ops do beside their declaration is found; the op that declares it runs."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fakes import HashTrainer, parts
from flax import nnx

import steptrace
from steptrace.diag.sanitize import (
    CapturedStateError,
    ChangedInPlaceError,
    UndeclaredAccessError,
    UnreachableResourceError,
    UnsavedResourcesError,
)

NOTES = steptrace.resource("notes", "cell", doc="a number of each step")
SEEN = steptrace.resource("seen", doc="how many groups were seen")


def program_of(function, *, reads, writes, saves=False, staleness=1):
    """GRPO in short, with an op on scored groups that declares the effects."""
    own = steptrace.op(takes=("groups",), gives="groups", reads=reads, writes=writes, name="looked_at")(function)

    @steptrace.program(name="sanitized", staleness=staleness)
    def made(step):
        step.dispatch(prompts=3, samples=2)
        groups = own(step.reward(step.take()))
        for mb in step.micro_batches(step.pack(step.advantages(groups))):
            step.fwd_bwd(mb)
        step.update()
        metrics = step.get_metrics()
        if saves:
            step.save_checkpoint()
        step.sync_weights()
        step.commit()
        step.log(metrics)

    return made.trace()


def run(function, *, reads=(), writes=(), trainer=None, sanitize=True, steps=3, **options):
    program = program_of(function, reads=list(reads), writes=list(writes))
    return steptrace.run(program, parts(trainer=trainer or HashTrainer()), steps=steps, sanitize=sanitize, **options)


def counted(groups, *, resources):
    resources.write("seen", (resources.read("seen") or 0) + len(groups))
    return groups


def from_the_step_before(groups, *, step, resources):
    resources.write("notes[k]", step)
    before = resources.read("notes[k-1]")
    assert before == (step - 1 if step else None)
    return groups


# What is declared is allowed, and does what it says.


def test_a_resource_keeps_its_value_from_step_to_step():
    seen = []

    def shown(groups, *, resources):
        counted(groups, resources=resources)
        seen.append(resources.read(SEEN))
        return groups

    run(shown, reads=["seen"], writes=["seen"])
    assert seen == [3, 6, 9]


def test_a_cell_belongs_to_its_step_and_is_let_go():
    held = []

    def looked(groups, *, step, resources):
        from_the_step_before(groups, step=step, resources=resources)
        held.append(resources.store.held)
        return groups

    run(looked, reads=["notes[k-1]"], writes=["notes[k]"], steps=20)
    assert max(held) <= 2


def test_built_in_resources_are_read_at_the_place_of_the_step():
    read = []

    def looked(groups, *, step, resources):
        weights, version = resources.read("rollout.weights[k-1]"), resources.read("policy.version[k-1]")
        assert np.array_equal(weights["w"], resources.read("params")["w"])
        read.append((step, version, resources.read("trainer.step"), resources.read("queue.training")))
        return groups

    run(looked, reads=["rollout.weights[k-1]", "policy.version[k-1]", "params", "trainer.step", "queue.training"])
    assert read == [(0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2)]


# An undeclared read, an undeclared write, a wrong index: found in every run.


@pytest.mark.parametrize("sanitize", [True, False])
@pytest.mark.parametrize(
    ("reads", "writes", "words", "add"),
    [
        ([], ["seen"], "reads `seen`, and does not declare it", 'reads=["seen"]'),
        (["seen"], [], "writes `seen`, and does not declare it", 'writes=["seen"]'),
    ],
)
def test_an_access_that_is_not_declared(sanitize, reads, writes, words, add):
    with pytest.raises(UndeclaredAccessError, match=f"`looked_at` {words}") as found:
        run(counted, reads=reads, writes=writes, sanitize=sanitize)
    assert add in found.value.help
    assert 'resources.write("seen"' in found.value.loc.source()


def test_control_both_declared_it_runs():
    assert run(counted, reads=["seen"], writes=["seen"]).steps == 3


def test_the_cell_of_another_step_than_declared():
    with pytest.raises(
        UndeclaredAccessError, match=r"declares that it reads `notes\[k\]`, and reads `notes\[k-1\]`"
    ) as it:
        run(from_the_step_before, reads=["notes[k]"], writes=["notes[k]"])
    assert 'resources.read("notes[k-1]")' in it.value.loc.source()
    assert 'reads=["notes[k-1]"]' in it.value.help


def test_control_the_declared_cell_runs():
    assert run(from_the_step_before, reads=["notes[k-1]"], writes=["notes[k]"]).steps == 3


def test_a_part_of_a_declared_resource_is_declared_and_the_whole_of_a_declared_part_is_not():
    steptrace.resource("buffer")
    steptrace.resource("buffer.cursor")
    assert run(lambda groups, *, resources: resources.read("buffer.cursor") or groups, reads=["buffer"]).steps == 3
    with pytest.raises(UndeclaredAccessError):
        run(lambda groups, *, resources: resources.read("buffer") or groups, reads=["buffer.cursor"])


def test_an_op_that_declares_nothing_may_touch_anything():
    program = program_of(counted, reads=None, writes=None)
    assert steptrace.run(program, parts(), steps=2, sanitize=True).steps == 2


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("grads", "has no value here"),
        ("nothing_of_that_name", "nobody declared"),
        ("notes", r"asked for as `notes\[k\]`"),
    ],
)
def test_what_resources_do_not_have(what, words):
    with pytest.raises(UnreachableResourceError, match=words):
        run(lambda groups, *, resources: resources.read(what) or groups, reads=["grads", NOTES])


def test_built_in_resources_are_not_written():
    with pytest.raises(UnreachableResourceError, match="ops of users read some of those and write none"):
        run(lambda groups, *, resources: resources.write("params", None) or groups, writes=["params"])


# Declared and never used: a note at the end.


def test_declared_effects_that_were_never_used_are_told():
    result = run(counted, reads=["seen", "notes[k-1]", "host[k]"], writes=["seen"])
    assert result.remarks == ("`looked_at` declares that it reads `notes[k-1]`, and never did",)


def test_an_op_without_resources_cannot_read_one():
    result = run(lambda groups: groups, reads=["host[k]", "policy.version[k-1]"])
    (remark,) = result.remarks
    assert "asks for no `resources`" in remark


def test_control_all_used_there_is_nothing_to_tell():
    assert run(counted, reads=["seen"], writes=["seen"]).remarks == ()


# A model in a closure.


def test_the_trainer_in_a_closure():
    trainer = HashTrainer()
    with pytest.raises(CapturedStateError, match="`looked_at` holds `trainer`, the trainer") as found:
        run(lambda groups: groups if trainer.applied >= 0 else [], reads=["host[k]"], trainer=trainer)
    assert "lambda groups" in found.value.loc.source()


def test_a_copy_of_the_parameters_in_an_object():
    class Judge:
        def __init__(self, params):
            self.params = {"kept": [params["w"].copy()]}

        def looked_at(self, groups):
            return groups if self.params["kept"][0].size else []

    own = Judge(HashTrainer().params).looked_at
    with pytest.raises(CapturedStateError, match="content of trained parameters"):
        run(lambda groups: own(groups), reads=["host[k]"])


@pytest.fixture
def module():
    return nnx.Linear(2, 2, rngs=nnx.Rngs(0))


def test_a_module_of_nnx_in_a_closure(module):
    with pytest.raises(CapturedStateError, match="`module`, a module of NNX"):
        run(lambda groups: groups if module is not None else [], reads=["host[k]"])


@pytest.mark.parametrize("as_held", [jnp.asarray, np.asarray, lambda leaf: {"layers": (leaf,)}])
def test_parameters_of_a_trainer_on_jax_are_known_by_their_content(as_held):
    import optax

    from steptrace.run.sanitize_capture import held_by, is_copy, weight_hashes
    from steptrace.run.trainer import JaxTrainer

    trainer = JaxTrainer(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), optax.sgd(0.1), lambda model, batch: (0.0, 1, {}))
    hashes = weight_hashes(trainer.weights()[0])
    kernel = max(jax.tree.leaves(trainer.weights()[0]), key=lambda leaf: leaf.size)
    held, other = as_held(kernel), as_held(kernel + 1)
    assert [name for name, value in held_by(lambda: held) if is_copy(value, hashes)]
    assert not [name for name, value in held_by(lambda: other) if is_copy(value, hashes)]


MODEL = []


def test_a_model_in_a_global_variable_that_a_helper_names(module):
    def helper(groups):
        return groups if MODEL else []

    MODEL.append(module)
    try:
        with pytest.raises(CapturedStateError, match="MODEL"):
            run(lambda groups: helper(groups), reads=["host[k]"])
    finally:
        MODEL.clear()


@pytest.mark.parametrize("declared", ["params", "reference.params"])
def test_control_a_model_whose_parameters_are_declared(module, declared):
    held = module
    assert run(lambda groups: groups if held is not None else [], reads=["host[k]", declared]).steps == 3


def test_control_other_arrays_and_parts_may_be_held():
    table, words = np.arange(4.0), parts()["tokenizer"]
    assert run(lambda groups: groups if table.size and words else [], reads=["host[k]"]).steps == 3


def test_control_without_the_sanitizer_nobody_looks(module):
    assert run(lambda groups: groups if module is not None else [], reads=["host[k]"], sanitize=False).steps == 3


# Changes in place.


def clipped(groups):
    for group in groups:
        group.rewards[:] = group.rewards.clip(-1, 1)
    return groups


def test_a_numpy_array_that_is_changed_in_place():
    with pytest.raises(ChangedInPlaceError, match="`looked_at` wrote to a read-only array") as found:
        run(clipped, reads=["host[k]"])
    assert "group.rewards[:] = " in found.value.loc.source()


def test_an_array_that_is_changed_past_its_flags():
    def changed(groups):
        groups[1].rewards.setflags(write=True)
        groups[1].rewards[0] += 1
        return groups

    with pytest.raises(ChangedInPlaceError, match=r"`looked_at` changed `groups\[1\]\.rewards` in place"):
        run(changed, reads=["host[k]"])


def test_a_list_of_groups_that_is_sorted_in_place():
    def by_reward(groups):
        groups.sort(key=lambda group: -group.rewards.sum())
        return groups

    with pytest.raises(ChangedInPlaceError, match="in place"):
        run(by_reward, reads=["host[k]"])


def test_an_array_outside_the_op_that_it_counts_in():
    counts = np.zeros(3)

    def counting(groups):
        counts[0] += 1
        return groups

    with pytest.raises(ChangedInPlaceError, match=r"changed `counts \(outside the op\)` in place") as info:
        run(counting, reads=["host[k]"])
    assert "keep it in a resource" in info.value.help


def test_control_new_values_are_returned_and_train_what_they_train_without_the_sanitizer():
    def renewed(groups):
        return [replace(group, rewards=group.rewards.clip(-1, 1)) for group in reversed(groups)]

    watched, plain = (run(renewed, reads=["host[k]"], sanitize=sanitize) for sanitize in (True, False))
    assert watched.params_digest == plain.params_digest
    assert watched.calls_digest == plain.calls_digest


def test_control_without_the_sanitizer_a_change_in_place_goes_unseen():
    assert run(clipped, reads=["host[k]"], sanitize=False).steps == 3


# Checkpoints.


def test_values_in_resources_are_not_in_checkpoints(tmp_path):
    program = program_of(counted, reads=["seen"], writes=["seen"], saves=True)
    with pytest.raises(UnsavedResourcesError, match="`looked_at` writes resources of its own"):
        steptrace.run(program, parts(), steps=2, out=tmp_path / "out")
    assert steptrace.run(program, parts(), steps=2).steps == 2
