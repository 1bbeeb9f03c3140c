"""The reason of an edge as a sentence, in the words of a train step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steptrace.check.edge_kind import EdgeKind

if TYPE_CHECKING:
    from steptrace.check.edge import Edge

_NOUNS = {
    "rng": "the random state",
    "prompts.cursor": "the position in the prompt source",
    "rollout.weights": "the rollout weights",
    "policy.version": "the policy version",
    "queue.groups": "the queue of groups",
    "queue.serving": "the serving cursor",
    "queue.taken": "the groups that the step took",
    "queue.training": "the training cursor",
    "queue.committed": "the dispatch window",
    "host": "the host memory of the step",
    "packer": "the packer's buffer",
    "reference.params": "the reference's parameters",
    "params": "the parameters",
    "grads": "the gradient accumulator",
    "grads.sums": "the gradient sums",
    "grads.count": "the count of the gradient sums",
    "optimizer": "the optimizer state",
    "trainer.step": "the trainer's step count",
    "trainer.metrics": "the trainer's metrics buffer",
    "metrics": "the metrics of the step",
    "trainer.staged": "the micro-batch that the trainer holds",
    "trainer.attempts": "the queue of training calls to be settled",
    "trainer.held": "the update that the trainer holds back",
    "trainer.copies.sync": "the copy of the parameters",
    "trainer.copies.save": "the copy of the trainer's state",
    "trainer.record": "the metrics that were set aside",
    "rollout.arrived": "the weights that arrived at the rollout",
    "sync.round": "the sync round",
    "buffers.first": "the ring of buffers",
    "buffers.loop": "the ring of buffers",
}
_PLURALS = {"sums", "groups", "metrics", "parameters", "weights"}
_OBSERVERS = {
    "trainer.calls": "the trainer gets",
    "checkpoints": "the checkpoint store sees",
    "log": "the log shows",
    "callbacks": "users' callbacks see",
}


def instance(id: str, step: int = 0, micro: int | None = None) -> str:
    """An instance in words: ``fwd_bwd`` of step k+1."""
    of_step = f"step k{step:+d}" if step else "step k"
    if micro is None:
        return f"`{id}` of {of_step}"
    count = f"micro-batch m{micro:+d}" if micro else "micro-batch m"
    return f"`{id}` of {count} of {of_step}" if step else f"`{id}` of {count}"


def ends_of(edge: Edge, step: int = 0) -> tuple[str, str]:
    """The two instances of an edge in words, of which the first belongs to step ``k + step``."""
    if edge.micro is not None:
        return instance(edge.before, step, micro=0), instance(edge.after, step, micro=edge.micro)
    return instance(edge.before, step), instance(edge.after, step + edge.distance)


def noun(what: str) -> str:
    """A resource in words; its own name in backquotes where there are none."""
    return _NOUNS.get(what.partition("[")[0], f"`{what}`")


def _barrier(edge: Edge, a: str, b: str) -> str:
    if edge.note == edge.before != edge.after:
        return f"{a} declares no effects, so {b} may not pass it"
    if edge.note == edge.after != edge.before:
        return f"{b} declares no effects, so it may not pass {a}"
    return f"{a} and {b} declare no effects, so neither may pass the other"


def older(updates: int) -> str:
    """What more staleness means, in words."""
    count = "an update" if updates == 1 else f"{updates} updates"
    return f"rollouts are then made with weights that are {count} older"


def _pronoun(thing: str) -> str:
    head = thing.partition(" of ")[0].partition(" that ")[0].rpartition(" ")[2]
    return "them" if head in _PLURALS else "it"


def reason_of(edge: Edge, step: int = 0) -> str:
    """Why the first instance of an edge comes before the second, one sentence without a full stop.

    Args:
      edge: the edge.
      step: the first instance is that of step ``k + step``.
    """
    a, b = ends_of(edge, step)
    thing, name = noun(edge.what), edge.what.partition("[")[0]
    if edge.kind is EdgeKind.RAW and name == "rollout.weights" and "[" in edge.what:
        return f"{b} uses the rollout weights that {a} publishes" + (f" ({edge.note})" if edge.note else "")
    if name in _OBSERVERS and edge.kind in (EdgeKind.CHANNEL, EdgeKind.WAW, EdgeKind.RAW):
        return f"{_OBSERVERS[name]} {a} before {b}"
    if edge.kind is EdgeKind.WAR and name == "rollout.weights":
        return f"{b} overwrites {thing}, which {a} still reads; should {a} fail, no new ones are published"
    done = ", once it has finished" if edge.from_event == "done" else ""
    return {
        EdgeKind.VALUE: f"{b} uses `{edge.what}`, which {a} makes",
        EdgeKind.RAW: f"{b} needs {thing} as {a} leaves {_pronoun(thing)}{done}",
        EdgeKind.WAR: f"{b} {'changes or releases' if name == 'host' else 'overwrites'} {thing}, which {a} still reads",
        EdgeKind.WAW: f"{a} and {b} both write {thing}, in this order",
        EdgeKind.CHANNEL: f"{thing} shows {a} before {b}",
        EdgeKind.FIFO: f"{b} comes after {a} at {thing}: what is put on first is taken first",
        EdgeKind.CAPACITY: f"{b} needs room in `{name}`, which holds {edge.note} at a time: {a} makes it",
        EdgeKind.LIFETIME: f"{b} gives back the buffer of `{edge.what}`, which {a} reads until its work is done",
        EdgeKind.EXISTS: f"{b} runs only if {a} found that the step exists",
        EdgeKind.BARRIER: _barrier(edge, a, b),
    }[edge.kind]
