"""Models: how any flax model is split for training, and a small decoder to start from."""

from steptrace.run.models.split import SplitModel, split_model

__all__ = ["SplitModel", "split_model"]
