"""Two data shards that need two and three micro-batches: one packing decides for both, and pads with rows of no weight.

What such rows do to a trainer on a mesh is tested where there are eight devices: nothing.
"""

from __future__ import annotations

import numpy as np

from steptrace.lang.records import Completion, Group, GroupId, Prompt
from steptrace.run.data.packing import Packer

LENGTH, SHARDS = 8, 2


def group(number: int) -> Group:
    """One sequence that fills a row."""
    completion = Completion(np.full(4, 5, np.int32), np.full(4, -0.5, np.float32), "", True)
    name = f"p:{number}"
    prompt = np.full(LENGTH - 4, 3, np.int32)
    return Group(GroupId(name, 0), 0, Prompt(name, name), prompt, (completion,), 0, None, np.ones(1, np.float32))


GROUPS = [group(number) for number in range(5)]


def test_the_step_has_one_number_of_micro_batches_and_what_a_shard_lacks_is_padding():
    packed = Packer(rows=SHARDS, length=LENGTH).pack(GROUPS, step=0)
    assert [micro_batch.last for micro_batch in packed] == [False, False, True]
    rows = [[int(micro_batch.arrays["segment_ids"][shard].any()) for micro_batch in packed] for shard in range(SHARDS)]
    assert rows == [[1, 1, 1], [1, 1, 0]]
    missing = {name: array[1] for name, array in packed[-1].arrays.items()}
    assert not missing["segment_ids"].any()
    assert not missing["loss_mask"].any()
    assert not missing["advantages"].any()


def test_the_weight_of_the_step_is_that_of_its_sequences():
    packed = Packer(rows=SHARDS, length=LENGTH).pack(GROUPS, step=0)
    assert sum(float(micro_batch.arrays["loss_mask"].sum()) for micro_batch in packed) == 4 * len(GROUPS)


def test_control_shards_that_pack_for_themselves_disagree():
    alone = [len(Packer(rows=1, length=LENGTH).pack(GROUPS[shard::SHARDS], step=0)) for shard in range(SHARDS)]
    assert alone == [3, 2]
