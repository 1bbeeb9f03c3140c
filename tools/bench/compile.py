"""`steptrace bench compile`: how long it takes to print, parse and check a program, by its number of ops."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from absl import flags

from ..command import Command
from ..table import aligned
from .load import ForeignLoad, shown
from .step_times import step_times

if TYPE_CHECKING:
    from steptrace.ir import Program

SIZES = (50, 150, 500, 1500, 5000)
"""Numbers of ops that are measured."""

TASKS = ("print", "parse", "verify", "edges", "check", "lanes", "loops", "waits")
"""What is measured, in its order; see the details of the command."""

_REPEATS = 3
"""Runs of each measurement, of which the fastest counts."""


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_integer("most", SIZES[-1], "the largest number of ops", SIZES[0], flag_values=values)
    flags.DEFINE_bool("json", False, "print one JSON object instead of the table", flag_values=values)


def _run(operands: list[str], values: flags.FlagValues) -> int:
    load = ForeignLoad()
    sizes = [size for size in SIZES if size <= values.most]
    step = step_times()
    seconds = measure(sizes)
    found = {
        "step": step,
        "ops": sizes,
        "seconds": seconds,
        "growth": {name: growth(sizes, times) for name, times in seconds.items()},
    }
    foreign = load.share()
    if values.json:
        print(json.dumps({**found, "foreign_cpu": foreign}))
        return 0
    print(report(found))
    print(f"\nother processes took {shown(foreign)} of the machine meanwhile")
    return 0


def measure(sizes: Sequence[int]) -> dict[str, list[float]]:
    """Seconds of processor time for each task, one for each size."""
    found: dict[str, list[float]] = {name: [] for name in TASKS}
    for size in sizes:
        for name, task in _tasks(size).items():
            found[name].append(min(_timed(task) for _ in range(_REPEATS)))
    return found


def _timed(task: Callable[[], object]) -> float:
    begin = time.process_time()
    task()
    return time.process_time() - begin


def _tasks(size: int) -> dict[str, Callable[[], object]]:
    """What is measured on a program of so many ops. What is remembered between calls is forgotten before each."""
    from steptrace.check import check_order, edges_of, places_of, units_of, waits_of
    from steptrace.check.edges import edges_for
    from steptrace.ir import parse_program, print_program
    from steptrace.ir.verify import problems

    plain, laned = sized_program(size), ahead(sized_program(size))
    looped = looped_program(size)
    streamed = packed_apart(looped)
    text = print_program(plain)

    def forget() -> None:
        for remembered in (edges_for, places_of, units_of):
            remembered.cache_clear()

    def edges() -> None:
        forget()
        edges_of(plain)

    def check(schedule: Program, reference: Program) -> Callable[[], None]:
        def run() -> None:
            forget()
            check_order(schedule, reference)

        return run

    def waits() -> None:
        forget()
        waits_of(streamed, looped)

    return {
        "print": lambda: print_program(plain),
        "parse": lambda: parse_program(text),
        "verify": lambda: problems(plain),
        "edges": edges,
        "check": check(plain, plain),
        "lanes": check(laned, plain),
        "loops": check(streamed, looped),
        "waits": waits,
    }


def sized_program(size: int) -> Program:
    """A program of so many ops: stages that each read what stages before them wrote, on states, cells and values."""
    from steptrace.ir import Given, Op, Operand, OpKind, Program, Resource, ResourceKind, Result, Type, Use

    groups = max(1, size // 25)
    resources = [Resource(f"state{at}", ResourceKind.STATE) for at in range(groups)]
    resources += [Resource(f"cell{at}", ResourceKind.CELL) for at in range(groups)]
    kinds, ops = [], []
    for at in range(size):
        group, near = at * groups // size, max(0, at * groups // size - 1)
        kind = OpKind(
            f"op{at}",
            (Operand("x", None),) if at % 3 else (),
            (Given("v", "value"),),
            reads=(f"state{near}", f"cell{group}[k-1]") if at % 2 else (f"state{group}",),
            writes=(f"state{group}",) if at % 5 == 0 else (f"cell{group}[k]",) if at % 5 == 1 else ("log",),
            user=True,
        )
        kinds.append(kind)
        args = (Use(f"v{at - 1}"),) if at % 3 else ()
        ops.append(Op(f"op{at}", kind.name, args, (Result(f"v{at}", Type("value")),)))
    log = Resource("log", ResourceKind.CHANNEL)
    return Program("sized", resources=(*resources, log), kinds=tuple(kinds), body=tuple(ops))


def ahead(program: Program) -> Program:
    """The program with its first tenth one step ahead on a lane of its own, as take-ahead leaves it."""
    from dataclasses import replace

    from steptrace.ir import Op

    tenth = len(program.body) // 10
    moved = tuple(replace(op, lane="packer") if isinstance(op, Op) else op for op in program.body[:tenth])
    return replace(program, body=(*moved, *program.body[tenth:]))


def looped_program(size: int) -> Program:
    """A program of so many ops in loops of three, each of which trains on a stream of its own."""
    from steptrace.ir import Given, Loop, Op, Operand, OpKind, Program, Result, Type, Use
    from steptrace.lang.reference import resolve

    rows = (
        OpKind("look", (Operand("x", None),), (Given("y", "value"),), reads=("reference.params",), user=True),
        OpKind("train", (Operand("y", None),), reads=("params", "grads"), writes=("grads", "trainer.calls"), user=True),
    )
    loops = []
    for at in range(size // 3):
        given = (("mb", "micro_batch"), ("last", "flag"), ("exists", "flag"))
        made = tuple(Result(f"{name}{at}", Type(base)) for name, base in given)
        head = Op(f"stream{at}", "stream_mb", results=made, attrs=(("estimator", "grpo"),))
        look = Op(f"look{at}", "look", (Use(f"mb{at}"),), (Result(f"y{at}", Type("value")),))
        body = (head, look, Op(f"train{at}", "train", (Use(f"y{at}"),)))
        loops.append(Loop(f"loop{at}", "micro_batches", "m", None, None, body))
    return Program("looped", resources=resolve("grpo").resources, kinds=rows, body=tuple(loops))


def packed_apart(program: Program) -> Program:
    """The program with what feeds the training calls of its loops on a lane of its own."""
    from dataclasses import replace

    from steptrace.ir import Loop, Op

    def placed(loop: Loop) -> Loop:
        ops = [node for node in loop.body if isinstance(node, Op)]
        fed = tuple(op if op.kind == "train" else replace(op, lane="packer") for op in ops)
        return replace(loop, body=fed)

    return replace(program, body=tuple(placed(node) for node in program.body if isinstance(node, Loop)))


def growth(sizes: Sequence[int], seconds: Sequence[float]) -> dict[str, float]:
    """How the time grows: the exponent of the best power law, and the last time over what n log n predicts.

    The prediction runs through the measurement in the middle; 1.0 is growth as n log n, more is worse.
    """
    logs = [(math.log(size), math.log(max(time, 1e-9))) for size, time in zip(sizes, seconds, strict=True)]
    mean_x, mean_y = (sum(values) / len(logs) for values in zip(*logs, strict=True))
    spread = sum((x - mean_x) ** 2 for x, _ in logs) or 1.0
    exponent = sum((x - mean_x) * (y - mean_y) for x, y in logs) / spread
    middle = len(sizes) // 2
    unit = seconds[middle] / (sizes[middle] * math.log(sizes[middle]))
    return {
        "exponent": round(exponent, 3),
        "over_n_log_n": round(seconds[-1] / max(unit * sizes[-1] * math.log(sizes[-1]), 1e-9), 3),
    }


def report(found: dict[str, Any]) -> str:
    """The times as a table, in milliseconds."""
    rows = [("ops", *found["seconds"])]
    for at, size in enumerate(found["ops"]):
        rows.append((f"{size:,}", *(f"{times[at] * 1e3:.1f}" for times in found["seconds"].values())))
    for name, words in (("exponent", "exponent"), ("over_n_log_n", "over n log n")):
        rows.append((words, *(f"{fit[name]:.2f}" for fit in found["growth"].values())))
    step = ", ".join(f"{name} {seconds * 1e3:.1f}" for name, seconds in found["step"].items())
    return f"milliseconds of processor time\n\n{aligned(rows)}\n\nthe pipelined boundary of grpo: {step}"


COMMAND = Command(
    name="bench compile",
    operands="",
    summary="How the times to print, parse and check a program grow with its number of ops.",
    examples=(
        ("bench compile", "programs of 50 to 5,000 ops"),
        ("bench compile --most=500 --json", "up to 500 ops, for scripts"),
    ),
    run=_run,
    define=_define,
    details="""\
`print` and `parse` are of a program on states, cells and values; `verify` checks its structure, `edges` derives all its
edges, `check` and `lanes` do so too and then check a schedule of one lane, and of two. `loops` does that for a step of
many streamed loops whose streams have a lane of their own, and `waits` derives the waits of that schedule. The exponent
is that of the best power law through the times; `over n log n` is the longest time over what growth as n log n from the
middle size would give.

The last line is of `pipelined-boundary` on grpo{staleness=1}, each measured once: `import` of the package; `derive`, to
trace it, run the pipeline and check structure and edges; `validate`, to run it beside its source in full.""",
)
