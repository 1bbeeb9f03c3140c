"""Trainer, rollout and reference in processes of their own, as a run sees them."""
