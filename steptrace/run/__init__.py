"""Running a plan on JAX: executor, trainer, rollout, data."""
