"""The optimizers of a recipe."""

from __future__ import annotations

import optax

from steptrace.run.job.recipe import Recipe


def warmup_optimizer(recipe: Recipe) -> optax.GradientTransformation:
    """AdamW with clipping; the learning rate rises over a tenth of the warm-up, then falls to a tenth (cosine)."""
    peak = recipe.warmup_learning_rate
    rise = max(1, recipe.warmup_steps // 10)
    schedule = optax.warmup_cosine_decay_schedule(0.0, peak, rise, max(rise + 1, recipe.warmup_steps), peak / 10)
    return _adamw(recipe, schedule)


def rl_optimizer(recipe: Recipe) -> optax.GradientTransformation:
    """AdamW with clipping; the learning rate rises over ``ramp`` updates, and falls over ``decay`` if that is set.

    The schedule counts updates and knows nothing of how many the run makes: a run that is taken further goes on as a
    longer one would.
    """
    peak = recipe.learning_rate
    rise = optax.linear_schedule(peak / (recipe.ramp + 1), peak, recipe.ramp)
    fall = optax.linear_schedule(peak, peak * recipe.final_share, recipe.decay) if recipe.decay else peak
    return _adamw(recipe, optax.join_schedules([rise, _as_schedule(fall)], [recipe.ramp]))


def _as_schedule(value: optax.Schedule | float) -> optax.Schedule:
    return value if callable(value) else optax.constant_schedule(value)


def _adamw(recipe: Recipe, schedule: optax.Schedule) -> optax.GradientTransformation:
    return optax.chain(
        optax.clip_by_global_norm(recipe.clip_norm),
        optax.adamw(schedule, b2=recipe.b2, weight_decay=recipe.weight_decay),
    )
