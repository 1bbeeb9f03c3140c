"""What is run in several processes, and what is to come out."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).parents[1] / "mesh"))

from logps_oracle import Case, make, oracle

from steptrace_kernels.logps import Layout, Strategy

# The first axis of the mesh is the one that processes share, so sequences run from one into the next.
_LAYOUT = Layout(batch=("c", "e"), sequence=("f",), table_embed=("f", "c", "e"))
_IDLE = Layout(batch=("c",), sequence=("f",), table_embed=("f", "c"))
STRATEGIES = {
    "seed": (_LAYOUT, Strategy()),
    "vocabulary over processes": (_LAYOUT, Strategy(vocab_axes=("f",))),
    "vocabulary inside a process": (_LAYOUT, Strategy(vocab_axes=("c",))),
    "idle axis": (_IDLE, "auto"),
}
"""Layout and strategy of the head, by name."""


def case() -> Case:
    """Rows of several sequences; tensors of at most a few kilobytes."""
    ids = np.sort(np.random.default_rng(7).integers(1, 4, (4, 8)), axis=1).astype(np.int32)
    return make(4, 8, 8, 24, seed=7, bias=True, segment_ids=ids)


def expected() -> dict[str, np.ndarray]:
    """Values and gradients of the case in float64."""
    return oracle(case())
