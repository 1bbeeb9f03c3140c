"""Keyword-only parameters of a user's op that the runtime fills: they are no attributes and need no value in a step."""

from fakes import parts

import steptrace
from steptrace.lang.definition import trace

SEEN = []


@steptrace.op(takes=("groups",), gives="groups", reads=["host[k]"], writes=[])
def watched(groups, *, step, key, weight: float = 0.5):
    SEEN.append((step, tuple(key.shape), weight))
    return groups


@steptrace.program
def watching(step):
    step.dispatch(prompts=2, samples=2)
    groups = watched(step.reward(step.take()), weight=0.25)
    for mb in step.micro_batches(step.pack(step.advantages(groups))):
        step.fwd_bwd(mb)
    step.update()
    step.sync_weights()
    step.commit()
    step.log(step.get_metrics())


def test_the_runtime_fills_step_and_key_and_the_step_gives_the_rest():
    op = next(op for op in trace(watching).ops() if op.kind == "watched")
    assert dict(op.attrs) == {"weight": 0.25}
    SEEN.clear()
    steptrace.run(watching, parts(), steps=2)
    assert SEEN == [(0, (), 0.25), (1, (), 0.25)]
