"""The trainer: gradient accumulation, update, metrics, weights, checkpoints, for any flax model, optimizer and loss."""

from steptrace.run.trainer.losses import GrpoLoss, SftLoss
from steptrace.run.trainer.replay import Replay
from steptrace.run.trainer.trainer import JaxTrainer

__all__ = ["GrpoLoss", "JaxTrainer", "Replay", "SftLoss"]
