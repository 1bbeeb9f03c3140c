"""The losses against float64 loops written from the formulas, on logits given directly."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from trainer_cases import VOCAB, greedy_rows, one_each, pack, sequences

from steptrace.diag.training import LossSettingError
from steptrace.run.trainer import GrpoLoss, SftLoss

SEQUENCES = sequences(9, seed=5)


class Given:
    """A model that gives one logits array, whatever it is asked."""

    def __init__(self, logits):
        self.logits = logits

    def __call__(self, tokens, positions, segment_ids):
        return self.logits


@pytest.fixture(params=[one_each, greedy_rows], ids=["rows of one", "packed"])
def case(request):
    batch = pack(request.param(SEQUENCES))
    logits = np.random.default_rng(7).normal(size=(*batch["tokens"].shape, VOCAB)).astype(np.float32) * 2
    return logits, batch


def sequences_of(batch):
    """(row, first, last + 1) of each sequence, found from the segment ids alone."""
    for r, row in enumerate(batch["segment_ids"]):
        for number in range(1, row.max() + 1):
            places = np.flatnonzero(row == number)
            yield r, places[0], places[-1] + 1


def grpo_oracle(logits, batch, loss):
    """Loss sum, count and metric means, token by token in float64."""
    old_name = "old_logps" if "old_logps" in batch else "rollout_logps"
    total, tokens, counted = 0.0, 0, 0
    metrics = dict.fromkeys(("entropy", "ratio", "clip_fraction", "logp_gap", "kl"), 0.0)
    for r, first, last in sequences_of(batch):
        terms = []
        for i in range(first + 1, last):
            if not batch["loss_mask"][r, i]:
                continue
            x = logits[r, i - 1].astype(np.float64) / loss.temperature
            logps = x - x.max() - np.log(np.sum(np.exp(x - x.max())))
            p = logps[batch["tokens"][r, i]]
            ratio = np.exp(p - np.float64(batch[old_name][r, i]))
            advantage = np.float64(batch["advantages"][r, i])
            clipped = min(max(ratio, 1 - loss.clip_low), 1 + loss.clip_high)
            f = np.float64(batch["ref_logps"][r, i])
            kl = np.exp(f - p) - (f - p) - 1
            entropy = -np.sum(np.exp(logps) * logps)
            terms.append(-min(ratio * advantage, clipped * advantage) + loss.kl_coef * kl - loss.entropy_coef * entropy)
            metrics["entropy"] += entropy
            metrics["ratio"] += ratio
            metrics["clip_fraction"] += clipped * advantage < ratio * advantage
            metrics["logp_gap"] += abs(p - np.float64(batch["rollout_logps"][r, i]))
            metrics["kl"] += kl
        tokens += len(terms)
        counted += bool(terms)
        total += sum(terms) if loss.aggregation == "token_mean" else sum(terms) / len(terms)
    count = tokens if loss.aggregation == "token_mean" else counted
    return total, count, {name: value / tokens for name, value in metrics.items()}


@pytest.mark.parametrize(
    "loss",
    [
        GrpoLoss(),
        GrpoLoss(kl_coef=0.1, temperature=0.7),
        GrpoLoss(clip_low=0.1, clip_high=0.5, entropy_coef=0.05),
        GrpoLoss(aggregation="sequence_mean", kl_coef=0.1, entropy_coef=0.05, temperature=1.3),
    ],
    ids=["plain", "kl", "asymmetric", "sequence_mean"],
)
@pytest.mark.parametrize("old", [True, False], ids=["old_logps", "rollout_logps"])
def test_grpo_agrees_with_the_loop(case, loss, old):
    logits, batch = case
    if not old:
        del batch["old_logps"]
    total, count, aux = jax.jit(lambda x, b: loss(Given(x), b))(logits, batch)
    expected, expected_count, metrics = grpo_oracle(logits, batch, loss)
    np.testing.assert_allclose(total, expected, rtol=2e-5)
    assert count == expected_count
    assert sorted(aux) == sorted(metrics)
    for name, (value, weight) in aux.items():
        np.testing.assert_allclose(value / weight, metrics[name], rtol=2e-5, atol=1e-6, err_msg=name)


def test_grpo_gradient_agrees_with_differences_of_the_loop(case):
    logits, batch = case
    loss = GrpoLoss(kl_coef=0.1, entropy_coef=0.05, aggregation="sequence_mean")
    grad = np.asarray(jax.grad(lambda x: loss(Given(x), batch)[0])(logits))
    assert np.all(np.isfinite(grad))
    rng = np.random.default_rng(0)
    for _ in range(3):
        way = rng.normal(size=logits.shape)
        ends = [grpo_oracle(logits.astype(np.float64) + h * way, batch, loss)[0] for h in (-1e-6, 1e-6)]
        np.testing.assert_allclose(np.sum(grad * way), (ends[1] - ends[0]) / 2e-6, rtol=1e-4)


def test_no_gradient_outside_the_trained_tokens(case):
    logits, batch = case
    grad = np.asarray(jax.grad(lambda x: GrpoLoss(kl_coef=0.1, entropy_coef=0.1)(Given(x), batch)[0])(logits))
    trained = np.zeros(batch["tokens"].shape, bool)
    trained[:, :-1] = batch["loss_mask"][:, 1:] > 0
    assert np.all(grad[~trained] == 0)
    assert np.all(np.any(grad[trained] != 0, axis=-1))


def test_control_exp_before_the_mask_is_nan_in_the_gradient(case):
    logits, batch = case

    def naive(x):
        from steptrace_kernels.logps import dense_logps

        logp = dense_logps(x, batch["tokens"], batch["segment_ids"]).logp
        return -jnp.sum(jnp.where(batch["loss_mask"] > 0, jnp.exp(logp - batch["rollout_logps"]), 0))

    assert not np.all(np.isfinite(jax.grad(naive)(logits)))


def test_a_huge_log_ratio_stays_finite(case):
    logits, batch = case
    batch["old_logps"] = np.full_like(batch["old_logps"], -300)
    batch["ref_logps"] = np.full_like(batch["ref_logps"], 200)
    value, grad = jax.value_and_grad(lambda x: GrpoLoss(kl_coef=0.1)(Given(x), batch)[0])(logits)
    assert np.isfinite(value)
    assert np.all(np.isfinite(grad))


def test_on_policy_the_ratio_is_one_and_nothing_is_clipped(case):
    logits, batch = case
    loss = GrpoLoss(temperature=0.8)
    batch["old_logps"] = batch["rollout_logps"] = np.asarray(loss.logps(Given(logits), batch))
    batch["ref_logps"] = batch["old_logps"]
    _, _, aux = loss(Given(logits), batch)
    means = {name: float(value / weight) for name, (value, weight) in aux.items()}
    assert (means["ratio"], means["clip_fraction"], means["kl"], means["logp_gap"]) == (1, 0, 0, 0)


def test_sft_agrees_with_the_loop(case):
    logits, batch = case
    total = tokens = entropies = 0.0
    for r, first, last in sequences_of(batch):
        for i in range(first + 1, last):
            if batch["loss_mask"][r, i]:
                x = logits[r, i - 1].astype(np.float64)
                logps = x - x.max() - np.log(np.sum(np.exp(x - x.max())))
                total -= logps[batch["tokens"][r, i]]
                entropies -= np.sum(np.exp(logps) * logps)
                tokens += 1
    value, count, aux = SftLoss()(Given(logits), batch)
    np.testing.assert_allclose([value, count, *aux["entropy"]], [total, tokens, entropies, tokens], rtol=1e-5)


def test_a_completion_without_a_prompt_does_not_count_its_first_token():
    batch = pack([SEQUENCES[:2]])
    batch["loss_mask"] = (batch["segment_ids"] > 0).astype(np.float32)
    logits = np.zeros((*batch["tokens"].shape, VOCAB), np.float32)
    _, count, _ = SftLoss()(Given(logits), batch)
    assert count == sum(len(seq.tokens) - 1 for seq in SEQUENCES[:2])
    _, sequences_counted, _ = GrpoLoss(aggregation="sequence_mean")(Given(logits), batch)
    assert sequences_counted == 2


@pytest.mark.parametrize("loss", [GrpoLoss(), GrpoLoss(aggregation="sequence_mean"), SftLoss()])
def test_a_batch_of_padding_is_zero_with_count_zero_and_no_gradient(loss):
    batch = pack([[], []])
    logits = np.zeros((*batch["tokens"].shape, VOCAB), np.float32)
    (total, (count, aux)), grad = jax.value_and_grad(
        lambda x: (lambda out: (out[0], out[1:]))(loss(Given(x), batch)), has_aux=True
    )(logits)
    assert (total, count) == (0, 0)
    assert np.all(np.asarray(grad) == 0)
    assert all(pair == (0, 0) for pair in aux.values())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: GrpoLoss(clip_low=1.0), "clip_low must be in"),
        (lambda: GrpoLoss(clip_high=-0.1), "clip_high must be at least 0"),
        (lambda: GrpoLoss(kl_coef=float("nan")), "kl_coef must be at least 0"),
        (lambda: GrpoLoss(temperature=0), "temperature must be above 0"),
        (lambda: GrpoLoss(entropy_coef=float("inf")), "entropy_coef must be finite"),
        (lambda: GrpoLoss(aggregation="mean"), "aggregation must be token_mean or sequence_mean, not 'mean'"),
        (lambda: SftLoss(temperature=-1), "temperature must be above 0"),
    ],
)
def test_settings_out_of_range_are_refused(make, words):
    with pytest.raises(LossSettingError, match=words):
        make()
