"""A job small enough for tests."""

from steptrace.run.job import JobConfig, Recipe

RECIPE = Recipe(
    questions=200,
    dim=16,
    layers=1,
    heads=2,
    warmup_steps=3,
    warmup_batch=16,
    micro_batch_tokens=120,
    kl_coef=0.05,
    steps=5,
)
PROGRAM = "grpo{prompts=4, samples=4, save_every=2}"


def job(out, **options):
    chosen = {"program": PROGRAM, "recipe": RECIPE, "eval_size": 20, "json": True, "seed": 5, "out": out}
    return JobConfig(**{**chosen, **options})
