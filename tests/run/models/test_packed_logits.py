import jax.numpy as jnp
import optax
import pytest
from flax import linen as nn
from flax import nnx

from steptrace.diag.training import ModelError
from steptrace.lang.records import MicroBatch
from steptrace.run.models.call import packed_logits
from steptrace.run.models.split import split_model
from steptrace.run.rollout import FrozenReference
from steptrace.run.trainer import JaxTrainer, SftLoss

ROWS = jnp.ones((2, 5), jnp.int32)
ARRAYS = {"tokens": ROWS, "positions": ROWS, "segment_ids": ROWS, "loss_mask": jnp.ones((2, 5), jnp.float32)}


class Table(nnx.Module):
    """Logits from a table, bent by a function."""

    def __init__(self, bend=lambda logits: logits):
        self.table = nnx.Embed(7, 7, rngs=nnx.Rngs(0))
        self.bend = bend

    def __call__(self, tokens, positions, segment_ids):
        return self.bend(self.table(tokens))


class TokensOnly(nnx.Module):
    def __init__(self):
        self.table = nnx.Embed(7, 7, rngs=nnx.Rngs(0))

    def __call__(self, tokens):
        return self.table(tokens)


class LinenTokensOnly(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        return nn.Embed(7, 7)(tokens)


WRONG = [
    (Table(lambda logits: logits[:, :-1]), r"Table gave float32 \[2, 4, 7\] as the logits of \[2, 5\] tokens"),
    (Table(lambda logits: logits[0]), r"gave float32 \[5, 7\]"),
    (Table(lambda logits: logits[:, :, :0]), r"gave float32 \[2, 5, 0\]"),
    (Table(lambda logits: (logits, 1)), "gave a tuple"),
    (Table(lambda logits: None), "gave a NoneType"),
    (Table(lambda logits: logits.argmax(-1, keepdims=True)), r"gave int32 \[2, 5, 1\]"),
    (TokensOnly(), r"TokensOnly cannot be called as model\(tokens, positions, segment_ids\): too many positional"),
]


@pytest.mark.parametrize(("model", "words"), WRONG)
def test_a_model_of_another_form_is_refused_by_trainer_and_reference(model, words):
    batch = MicroBatch(0, 0, dict(ARRAYS), (), last=True)
    with pytest.raises(ModelError, match=words):
        JaxTrainer(model, optax.sgd(0.1), SftLoss()).fwd_bwd(batch)
    with pytest.raises(ModelError, match=words):
        FrozenReference(model).logps(batch)


def test_a_linen_module_is_named_as_its_user_knows_it():
    module = LinenTokensOnly()
    split = split_model(module, linen_variables=module.init(nnx.Rngs(0).params(), ROWS))
    with pytest.raises(ModelError, match="LinenTokensOnly cannot be called as model"):
        packed_logits(split.build(split.params, split.rest), ROWS, ROWS, ROWS)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_control_logits_of_any_width_fit(dtype):
    assert packed_logits(Table(lambda logits: logits.astype(dtype)), ROWS, ROWS, ROWS).shape == (2, 5, 7)


def test_control_a_model_may_take_more_than_it_is_given():
    class More(Table):
        def __call__(self, tokens, positions, segment_ids, *, train=False):
            return super().__call__(tokens, positions, segment_ids)

    assert packed_logits(More(), ROWS, ROWS, ROWS).shape == (2, 5, 7)
