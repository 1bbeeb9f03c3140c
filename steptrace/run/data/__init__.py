"""From prompts to micro-batches, on the host: sources, draws, rewards, advantages, the queue, packing."""

from steptrace.run.data.advantages import GlobalNormalized, GroupAdvantages, LeaveOneOut
from steptrace.run.data.cursor import DataCursor, Draws
from steptrace.run.data.packing import Key, Packer, PackStream, join, spans, unpack
from steptrace.run.data.prompts import JsonlPrompts, ListPrompts
from steptrace.run.data.queue import GroupQueue
from steptrace.run.data.queue_batch import Ledger
from steptrace.run.data.rewards import score

__all__ = [
    "DataCursor",
    "Draws",
    "GlobalNormalized",
    "GroupAdvantages",
    "GroupQueue",
    "JsonlPrompts",
    "Key",
    "LeaveOneOut",
    "Ledger",
    "ListPrompts",
    "PackStream",
    "Packer",
    "join",
    "score",
    "spans",
    "unpack",
]
