"""The words of a dump: what a line says, word by word."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from .table import aligned

WORDS: Mapping[str, str] = MappingProxyType(
    {
        "program": "its name and parameters; in front of it the files that places count: `@1:17` is file 1, line 17",
        "contract": "what stays exact and what may lag: `weights` of the rollouts (pinned: those of a fixed step), "
        "`staleness` in updates, a `partial` last step, an `empty` step, `saves` and `logs` that may fail late",
        "before": "ops that run once, in front of step 0; `after`: behind the last step",
        "step": "`step k`: the ops of a step in the order in which their lanes issue them",
        "loop": "`loop micro_batches: m in %batch`: once for each micro-batch of the step; `from 1`: all but the first",
        "%": "`%mb`: a value, followed by its type; `%kl@k-1`: of the step before; `%x@m-1`: of the micro-batch before",
        "reads": "what the op finds as the ops before it have left it; two that only read may change places",
        "writes": "what it leaves to others; an op that reads and writes changes it in place",
        "awaits": "what must be done, and not only sent off, before the op begins; a read waits only until it is sent",
        "[k]": "`policy.version[k]`: of what has a cell for each step, this step's; `[k-1]`: that of the step before",
        "lane": "the thread of the driver that issues the op; ops of one lane run in the order of their lines",
        "shift": "`shift=+1`: runs one step ahead: where step k stands, it is the op of step k+1",
        "at": "`at(m=0)`: stands for the step's first micro-batch, taken out of the loop",
        "when": "`when(every 10)`, `when(%staged)`: runs only in every tenth step, only where that flag is true",
        "from": "`from=fwd_bwd.stage`: which op of the source it stands for, and which part of it",
        "resource": "state that ops touch, and its kind: the words below, a number for how much it holds at a time",
        "state": "one thing that changes in place",
        "cell": "one cell for each step; `cell(2)`: of two steps at a time, so a third waits until one is free",
        "fifo": "a queue: what is written first is read first",
        "slot": "a buffer; `slot(1)`: for one at a time",
        "channel": "what is seen from outside, such as the calls of the trainer: the order of writes is the meaning",
    }
)
"""Each word, in the order in which a dump has them, and what it says."""


def words_page() -> str:
    """All words."""
    return "the words of a dump\n\n" + aligned(list(WORDS.items()), indent=2)


def word_page(word: str) -> str:
    """One word."""
    return f"`{word}` in a dump: {WORDS[word]}"
