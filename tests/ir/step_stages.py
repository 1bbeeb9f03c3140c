"""A GRPO step in stages, of which a test leaves out, adds or replaces some."""

from collections.abc import Callable

from steptrace.diag.loc import Loc
from steptrace.ir import Contract, OpKind, Program, Resource
from steptrace.testing.builder import Builder

Stage = Callable[[Builder], object]


def op(kind: str, *args: str, **options) -> Stage:
    """A stage of one op."""
    return lambda build: build.op(kind, *args, **options)


def micro_batches(*body: Stage, over: str | None = "batch", **options) -> Stage:
    """A stage that is a loop over micro-batches."""

    def stage(build: Builder) -> None:
        with build.loop("micro_batches", over, **options):
            for inner in body:
                inner(build)

    return stage


NEXT = op("next_mb", "batch", loc=Loc("train.py", 8))
REF = op("ref_logps", "mb", loc=Loc("train.py", 9))
TRAIN = op("fwd_bwd", "mb.2", loc=Loc("train.py", 10))

STAGES: dict[str, Stage] = {
    "dispatch": op("dispatch", prompts=4, samples=2, loc=Loc("train.py", 3)),
    "take": op("take", loc=Loc("train.py", 4)),
    "reward": op("reward", "groups", loc=Loc("train.py", 5)),
    "advantages": op("advantages", "scored", estimator="grpo", loc=Loc("train.py", 6)),
    "pack": op("pack", "advantaged", loc=Loc("train.py", 7)),
    "loop": micro_batches(NEXT, REF, TRAIN, loc=Loc("train.py", 8)),
    "update": op("update", loc=Loc("train.py", 11)),
    "get_metrics": op("get_metrics", loc=Loc("train.py", 12)),
    "sync": op("sync_weights", loc=Loc("train.py", 13)),
    "commit": op("commit", loc=Loc("train.py", 14)),
    "log": op("log", "metrics", loc=Loc("train.py", 15)),
    "free": op("free", loc=Loc("train.py", 16)),
}


def step(
    *,
    without: tuple[str, ...] = (),
    before: dict[str, Stage] | None = None,
    after: dict[str, Stage] | None = None,
    instead: dict[str, Stage] | None = None,
    first: Stage | None = None,
    at_end: Stage | None = None,
    contract: Contract | None = None,
    kinds: tuple[OpKind, ...] = (),
    resources: tuple[Resource, ...] = (),
    carries: tuple[tuple[str, float], ...] = (),
    sync: bool = True,
) -> Program:
    """The program: stages left out, added around others, or replaced; ``first`` before step 0, ``at_end`` after all."""
    build = Builder(contract, kinds=kinds, resources=resources, sync=sync)
    for name, init in carries:
        build.carry(name, init)
    if first is not None:
        with build.section("before"):
            first(build)
    for name, stage in STAGES.items():
        if before and name in before:
            before[name](build)
        if name not in without:
            (instead or {}).get(name, stage)(build)
        if after and name in after:
            after[name](build)
    if at_end is not None:
        with build.section("after"):
            at_end(build)
    return build.program(loc=Loc("train.py", 2))
