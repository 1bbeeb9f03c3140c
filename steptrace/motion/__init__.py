"""Motions: the only way to change a program. Each is checked, and says what it showed. Loads without jax."""

from steptrace.motion.budget import budget
from steptrace.motion.drop import drop
from steptrace.motion.fuse import fuse
from steptrace.motion.guard import guard
from steptrace.motion.hoist import hoist
from steptrace.motion.move_to_lane import move_to_lane
from steptrace.motion.peel import peel
from steptrace.motion.relax import relax
from steptrace.motion.rename import rename
from steptrace.motion.rotate import rotate
from steptrace.motion.schedule import Consulted, Moved, Obligation, Schedule, Step
from steptrace.motion.select_head import select_head
from steptrace.motion.sink import sink
from steptrace.motion.split import split
from steptrace.motion.stream import stream

__all__ = [
    "Consulted",
    "Moved",
    "Obligation",
    "Schedule",
    "Step",
    "budget",
    "drop",
    "fuse",
    "guard",
    "hoist",
    "move_to_lane",
    "peel",
    "relax",
    "rename",
    "rotate",
    "select_head",
    "sink",
    "split",
    "stream",
]
