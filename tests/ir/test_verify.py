"""Each rule of the structural verifier: a step that breaks it, and a neighbour that is accepted."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from step_stages import NEXT, REF, TRAIN, Stage, micro_batches, op, step

from steptrace.diag import Loc
from steptrace.diag.registry import all_codes, manual_page
from steptrace.ir import (
    And,
    Contract,
    Every,
    First,
    Flag,
    Given,
    Has,
    Last,
    MicroIs,
    Not,
    Operand,
    OpKind,
    Or,
    Origin,
    Predicate,
    Program,
    Resource,
    ResourceKind,
    Result,
    Type,
    Use,
    parse,
    print_program,
    problems,
    verify,
)
from steptrace.testing.builder import Builder

LOOK = OpKind("look", (Operand("it", None),), (Given("seen", "scalar"),), writes=("log",), user=True)
ASK = OpKind("ask", (), (Given("yes", "flag"),), writes=("log",), user=True)
WAKE = OpKind("wake", writes=("rollout.weights[k]",), user=True)
GRADE = OpKind(
    "grade", (Operand("groups", "groups"),), (Given("graded", "groups", "groups"),), reads=("host[k]",), user=True
)
MEAN = OpKind("mean", reads=("grads.sums", "grads.count"), writes=("grads.sums",), user=True)
CLIP = OpKind("clip", reads=("grads.sums",), writes=("grads.sums",), user=True)
NOTE = OpKind("note", writes=("notes.seen[k]",), user=True)
TALLY = OpKind("tally", reads=("notes.seen[k]",), writes=("log",), user=True)
RECALL = OpKind("recall", reads=("notes.seen[k-1]",), writes=("log",), user=True)
ADJUST = OpKind("adjust", reads=("notes.seen[k]",), writes=("notes.seen[k]",), user=True)
KINDS = (LOOK, ASK, WAKE, GRADE, MEAN, CLIP, NOTE, TALLY, RECALL, ADJUST)


def made(**edits) -> Callable[[], Program]:
    """A step with users' rows to choose from."""
    return lambda: step(kinds=KINDS, **edits)


def loop(*body: Stage, **options) -> dict[str, Stage]:
    """The stage of the loop, with another body."""
    return {"loop": micro_batches(*body, **options)}


def mini_batches(*body: Stage, over: str, count: int = 2) -> Stage:
    def stage(build: Builder) -> None:
        with build.loop("mini_batches", over, count=count):
            for inner in body:
                inner(build)

    return stage


def repeat(*body: Stage, count: int | None = 2) -> Stage:
    def stage(build: Builder) -> None:
        with build.loop("repeat", count=count):
            for inner in body:
                inner(build)

    return stage


def when(condition: Predicate, kind: str, *args: str, **options) -> Stage:
    return op(kind, *args, when=condition, **options)


STREAM = op("stream_mb", names=("mb", "last", "more"))
WHOLE_STREAM = op("stream_mb", names=("mb", "last", "more"), estimator="reinforce_pp")
FROM_STREAM = {"loop": micro_batches(STREAM, REF, TRAIN, over=None)}
NO_BULK = ("take", "reward", "advantages", "pack")
PARTS = mini_batches(
    op("next_part", "advantaged"), op("pack", "part"), micro_batches(NEXT, REF, TRAIN), op("update"), over="advantaged"
)
OLD_IN_PARTS = mini_batches(
    op("next_part", "advantaged"),
    op("pack", "part"),
    micro_batches(NEXT, op("old_logps", "mb"), TRAIN),
    op("update"),
    over="advantaged",
)
PARTS_OF_A_STEP = mini_batches(
    op("next_part", "scored"),
    op("advantages", "part", estimator="reinforce_pp"),
    op("pack", "advantaged"),
    micro_batches(NEXT, REF, TRAIN),
    op("update"),
    over="scored",
)


def PREVIOUS(build: Builder) -> None:
    """Reads what the step before handed on."""
    build.op("look", Use("seen", -1), names=("before",))


def PEELED(build: Builder) -> None:
    """The first micro-batch outside of the loop, and an op that stands for it as well."""
    build.op("next_mb", "batch", names=("one", "end"), micro=0)
    build.op("look", "one", micro=0)


def _arms(build: Builder) -> None:
    """One flag, made by either of two arms."""
    for condition, part in ((Has("fast"), "fast"), (Not(Has("fast")), "slow")):
        build.op("ask", names=("yes",), when=condition, origin=Origin("ask", part), id=f"ask.{part}")
    build.op("look", "groups", when=Or((Flag("yes"), Every(3))))


def _changed(op_id: str, **fields) -> Program:
    """The step with one op changed by hand."""
    program = step()
    return replace(program, body=tuple(replace(node, **fields) if node.id == op_id else node for node in program.body))


@dataclass(frozen=True)
class Case:
    """A rule: its code, a program that breaks it, what is said about which op, and a neighbour that is accepted."""

    code: str
    refused: Callable[[], Program]
    says: str
    at: str
    accepted: Callable[[], Program] = step


CASES = [
    # Values
    Case("ST130", made(without=("get_metrics",)), "`log` reads `%metrics`, which no op makes", "log"),
    Case(
        "ST130",
        made(without=("log",), before={"get_metrics": op("log", "metrics")}),
        "`log` reads `%metrics`, which `get_metrics` makes only after it",
        "log",
    ),
    Case(
        "ST130",
        made(instead={"log": op("log", "metrics", shift=1)}),
        "`log` reads `%metrics`, which `get_metrics` makes only after it",
        "log",
        made(instead={"log": op("log", "metrics", shift=-1), "free": op("free", shift=-1)}),
    ),
    Case(
        "ST131",
        made(after={"loop": op("look", "mb")}),
        "`%mb` is used outside the loop that makes it",
        "look",
        made(instead=loop(NEXT, REF, TRAIN, op("look", "mb"))),
    ),
    Case(
        "ST131",
        made(at_end=op("look", "metrics")),
        "`%metrics` is made in the step and used after the last step",
        "look",
        made(at_end=op("look", "v0")),
    ),
    Case(
        "ST132",
        made(after={"log": lambda build: build.op("look", Use("metrics", -1))}),
        "`look` reads `%metrics@k-1`, and no carry hands `%metrics` from step to step",
        "look",
        made(carries=(("seen", 0.0),), after={"log": lambda build: build.op("look", Use("seen", -1), names=("seen",))}),
    ),
    Case(
        "ST132",
        made(carries=(("seen", 0.0),), after={"log": lambda build: build.op("look", Use("seen", -2), names=("seen",))}),
        "`look` reads `%seen@k-2`; a carry reaches back one step",
        "look",
        made(carries=(("seen", 0.0),), after={"log": op("look", "metrics", names=("seen",))}, at_end=PREVIOUS),
    ),
    Case("ST132", made(carries=(("seen", 0.0),)), "`%seen` is carried over steps, and no op of the step makes it", ""),
    Case(
        "ST132",
        made(carries=(("seen", 0.0),), after={"log": when(Every(2), "look", "metrics", names=("seen",))}),
        "`%seen` is carried over steps, and made only in a loop or under a condition",
        "look",
    ),
    Case(
        "ST132",
        made(carries=(("metrics", 0.0),)),
        "`%metrics` is carried over steps from a number on, and is a metrics",
        "get_metrics",
    ),
    Case(
        "ST132",
        made(carries=(("seen", 0.0),), first=PREVIOUS, after={"log": op("look", "metrics", names=("seen",))}),
        "`look` reads `%seen@k-1`, and no step stands before step 0",
        "look",
    ),
    Case(
        "ST133",
        made(after={"log": lambda build: build.op("look", Use("mb", 0, -1))}),
        "`look` reads `%mb@m-1` outside a loop over micro-batches",
        "look",
        made(instead=loop(NEXT, REF, TRAIN, lambda build: build.op("look", Use("mb", 0, -1)))),
    ),
    Case(
        "ST133",
        made(instead=loop(NEXT, REF, TRAIN, lambda build: build.op("look", Use("mb", 0, 1)))),
        "`look` reads `%mb@m+1`, which a later round makes",
        "look",
    ),
    Case(
        "ST133",
        made(instead=loop(NEXT, REF, TRAIN, lambda build: build.op("look", Use("batch", 0, -1)))),
        "`%batch` is not made anew for each micro-batch",
        "look",
    ),
    Case(
        "ST134",
        made(without=("advantages",), instead={"pack": op("pack", "scored")}),
        "`pack` reads `advantages` of its groups, which no op before it has made",
        "pack",
    ),
    Case("ST134", made(instead={"log": op("log", "batch")}), "`log` takes metrics as its metrics, not batch", "log"),
    Case(
        "ST135",
        made(after={"log": when(Flag("metrics"), "look", "metrics")}),
        "`look` runs when `%metrics` is true, but that is a metrics, not a flag",
        "look",
        made(after={"log": when(Flag("exists"), "look", "metrics")}),
    ),
    Case(
        "ST136",
        made(instead={"get_metrics": when(Every(10), "get_metrics")}),
        "`log` reads `%metrics` also when `every 10` is false, and then it does not exist",
        "log",
        made(instead={"get_metrics": when(Every(5), "get_metrics"), "log": when(Every(10), "log", "metrics")}),
    ),
    Case(
        "ST136",
        made(after={"pack": op("next_mb", "batch", names=("one", "end"), micro=1)}, before={"log": op("look", "one")}),
        "`look` reads `%one` also in steps without a micro-batch 1",
        "look",
        made(after={"pack": PEELED}),
    ),
    Case(
        "ST137",
        made(instead=loop(NEXT, REF, op("fwd_bwd", "mb"))),
        "`ref_logps` only makes `%mb.2`, which nothing uses",
        "ref_logps",
    ),
    Case(
        "ST137",
        made(after={"take": op("grade", "groups")}),
        "`grade` only makes `%graded`, which nothing uses",
        "grade",
        made(after={"take": op("grade", "groups"), "log": op("look", "graded")}, without=("free",)),
    ),
    Case(
        "ST007",
        made(after={"take": op("ask", names=("exists",))}),
        "`%exists` is made twice",
        "ask",
        made(after={"take": lambda build: _arms(build)}),
    ),
    Case(
        "ST007",
        lambda: replace(step(), body=(*step().body, step().body[-1])),
        "`free` is the id of two ops or loops",
        "free",
    ),
    # Gradients
    Case("ST138", made(instead=loop(NEXT, REF)), "no op of the step computes a gradient: `update` applies", "update"),
    Case("ST138", made(instead=loop(NEXT, REF), without=("update",)), "no op of the step computes a gradient", ""),
    Case("ST139", made(without=("update",)), "no op of the step applies the gradients: `fwd_bwd` adds", "fwd_bwd"),
    Case(
        "ST140",
        made(after={"update": micro_batches(op("next_mb", "batch"), op("fwd_bwd", "mb.3"))}),
        "no update of the step applies the gradients that `fwd_bwd.2` adds",
        "fwd_bwd.2",
        made(
            after={"update": micro_batches(op("next_mb", "batch"), op("fwd_bwd", "mb.3")), "get_metrics": op("update")}
        ),
    ),
    Case(
        "ST140",
        made(instead={"update": when(Every(2), "update")}, without=("sync", "commit")),
        "no update of the step applies the gradients that `fwd_bwd` adds, in steps where `every 2` is false",
        "fwd_bwd",
        made(
            instead=loop(NEXT, when(Every(2), "fwd_bwd", "mb")) | {"update": when(Every(2), "update")},
        ),
    ),
    Case(
        "ST141", made(after={"update": op("update")}), "`update.2` is a second update on one accumulation", "update.2"
    ),
    Case(
        "ST141",
        made(without=("update",), before={"loop": op("update")}, after={"loop": op("update")}),
        "`update` applies gradients before any are accumulated",
        "update",
    ),
    Case(
        "ST141",
        made(after={"update": when(Every(2), "update")}),
        "`update.2` is a second update on one accumulation, in steps where `every 2` is true",
        "update.2",
        made(
            instead={"update": when(Every(2), "update", origin=Origin("update", "even"))},
            after={"update": when(Not(Every(2)), "update", origin=Origin("update", "odd"))},
        ),
    ),
    Case(
        "ST142",
        made(instead=loop(NEXT, REF, TRAIN, op("update")), without=("update",)),
        "`update` applies the gradients of each micro-batch by itself",
        "update",
        made(instead=loop(NEXT, REF, TRAIN, when(Last(), "update")), without=("update",)),
    ),
    Case(
        "ST142",
        made(instead=loop(NEXT, REF, TRAIN, when(First(), "update")), without=("update",)),
        "`update` applies the gradients of each micro-batch by itself",
        "update",
        made(instead=loop(NEXT, REF, TRAIN, when(Flag("last"), "update")), without=("update",)),
    ),
    Case(
        "ST143",
        made(before={"update": op("save_checkpoint")}),
        "`save_checkpoint` hands out the weights while gradients are accumulated and not applied",
        "save_checkpoint",
        made(after={"update": op("save_checkpoint")}),
    ),
    Case(
        "ST143",
        made(instead=loop(NEXT, REF, TRAIN, when(Every(2), "save_checkpoint"))),
        "`save_checkpoint` hands out the weights while gradients are accumulated and not applied, in steps where",
        "save_checkpoint",
        made(before={"loop": op("save_checkpoint")}),
    ),
    Case(
        "ST143",
        made(without=("sync",), before={"update": op("sync_weights")}),
        "`sync_weights` hands out the weights",
        "sync_weights",
        made(without=("loop", "update", "pack"), after={"advantages": PARTS}),
    ),
    # Rollouts
    Case(
        "ST144", made(sync=False), "in step 0, `dispatch` generates with weights that nobody has published", "dispatch"
    ),
    Case(
        "ST144",
        made(without=("sync",)),
        "`dispatch` waits for the weights of a step that publishes none",
        "dispatch",
    ),
    Case(
        "ST144",
        made(instead={"sync": when(Every(4), "sync_weights")}),
        "`dispatch` waits for the weights of a step that publishes none, in steps where `every 4` is false",
        "dispatch",
        made(instead={"sync": when(Every(4), "sync_weights")}, contract=Contract("freshest")),
    ),
    Case(
        "ST144",
        made(without=("sync",), contract=Contract("freshest")),
        "`dispatch` generates with the initial weights for ever",
        "dispatch",
    ),
    Case(
        "ST145",
        made(after={"sync": op("wake")}),
        "`wake` writes the weights of the step's version a second time",
        "wake",
        made(without=("sync",), after={"update": op("wake")}),
    ),
    Case(
        "ST145",
        made(first=op("sync_weights")),
        "`sync_weights` publishes the initial weights a second time",
        "sync_weights",
    ),
    Case("ST146", made(without=("dispatch",)), "`take` waits for groups that the step does not dispatch", "take"),
    Case(
        "ST146",
        made(instead={"dispatch": when(Every(2), "dispatch", prompts=1, samples=1)}),
        "`take` waits for groups that the step does not dispatch, in steps where `every 2` is false",
        "take",
    ),
    Case(
        "ST147",
        made(after={"dispatch": op("dispatch", prompts=1, samples=1)}),
        "`dispatch.2` dispatches groups that the step does not take",
        "dispatch.2",
        made(without=NO_BULK, instead=FROM_STREAM),
    ),
    Case("ST148", made(without=("commit",)), "the groups that `take` takes are never committed", "take"),
    Case(
        "ST148",
        made(without=("commit", *NO_BULK), instead=FROM_STREAM),
        "the groups that `stream_mb` takes are never committed",
        "stream_mb",
    ),
    Case(
        "ST149",
        made(after={"commit": op("commit")}),
        "`commit.2` commits the groups of the step a second time",
        "commit.2",
    ),
    Case(
        "ST150",
        made(without=("commit",), before={"take": op("commit")}),
        "`commit` commits groups before they are taken",
        "commit",
        made(without=("commit",), after={"take": op("commit")}),
    ),
    Case(
        "ST151",
        made(without=("free",), before={"log": op("free")}),
        "`free` releases the host memory of the step before `log` reads it",
        "free",
        made(without=("free",), after={"log": op("free")}),
    ),
    Case(
        "ST151",
        made(without=("free",), before={"loop": op("free")}),
        "`free` releases the host memory of the step before `next_mb` reads it",
        "free",
    ),
    # Loops
    Case(
        "ST152",
        made(without=NO_BULK, instead={"loop": micro_batches(WHOLE_STREAM, REF, TRAIN, over=None)}),
        "the estimator `reinforce_pp` needs every group of the step, and the loop has only a part",
        "stream_mb",
        made(instead={"advantages": op("advantages", "scored", estimator="reinforce_pp")}),
    ),
    Case(
        "ST152",
        made(without=("advantages", "pack", "loop", "update"), after={"reward": PARTS_OF_A_STEP}),
        "the estimator `reinforce_pp` needs every group of the step, and the loop has only a part",
        "advantages",
    ),
    Case(
        "ST153",
        made(instead=loop(REF, NEXT, op("fwd_bwd", "mb"))),
        "the first op of loop `micro_batches` is",
        "ref_logps",
    ),
    Case(
        "ST153",
        made(instead=loop(NEXT, op("next_mb", "batch"), op("fwd_bwd", "mb"), op("look", "mb.2"))),
        "loop `micro_batches` hands out two parts a round: `next_mb` and `next_mb.2`",
        "next_mb.2",
    ),
    Case(
        "ST153",
        made(instead=loop(when(Every(2), "next_mb", "batch"), REF, TRAIN)),
        "`next_mb` starts a round of loop `micro_batches`, so it runs under no condition",
        "next_mb",
    ),
    Case(
        "ST153",
        made(after={"pack": op("next_mb", "batch")}, instead={"loop": op("fwd_bwd", "mb")}),
        "`next_mb` hands out the parts of a loop over micro-batches, and stands in none",
        "next_mb",
    ),
    Case(
        "ST153",
        made(after={"pack": op("pack", "advantaged")}, instead=loop(NEXT, REF, TRAIN, over="batch.2")),
        "loop `micro_batches` runs over `%batch.2`, and `next_mb` takes its parts from `%batch`",
        "micro_batches",
    ),
    Case(
        "ST154",
        made(instead=loop(NEXT, micro_batches(op("next_mb", "batch"), op("fwd_bwd", "mb.2"), id="inner"))),
        "loop `inner` runs over micro-batches inside a loop over micro-batches",
        "inner",
        made(without=("loop", "update"), after={"pack": repeat(micro_batches(NEXT, REF, TRAIN), op("update"))}),
    ),
    Case("ST155", made(after={"log": repeat()}), "loop `repeat` is empty", "repeat"),
    Case("ST155", made(after={"log": repeat(op("look", "metrics"), count=0)}), "loop `repeat` runs 0 times", "repeat"),
    Case(
        "ST155",
        made(after={"log": repeat(op("look", "metrics"), count=None)}),
        "loop `repeat` does not say how often it runs",
        "repeat",
        made(after={"log": repeat(op("look", "metrics"), count=1)}),
    ),
    Case(
        "ST155",
        made(instead=loop(NEXT, REF, TRAIN, start=-1)),
        "starts from -1",
        "micro_batches",
        made(instead=loop(NEXT, REF, TRAIN, start=1)),
    ),
    Case(
        "ST156",
        made(after={"log": when(Last(), "look", "metrics")}),
        "`look` runs when `last`, and stands in no loop over micro-batches",
        "look",
        made(instead=loop(NEXT, REF, TRAIN, when(MicroIs(2), "look", "mb"))),
    ),
    Case(
        "ST156",
        made(instead=loop(NEXT, REF, TRAIN, op("look", "mb", micro=0))),
        "`look` stands for micro-batch 0, which only an op outside the loop can",
        "look",
    ),
    # What an item is by itself
    Case(
        "ST157",
        made(after={"log": when(Every(0), "look", "metrics")}),
        "`every 0` is no period",
        "look",
        made(after={"log": when(Every(1), "look", "metrics")}),
    ),
    Case(
        "ST157", made(after={"log": when(And((Every(2),)), "look", "metrics")}), "join two conditions or more", "look"
    ),
    Case(
        "ST157",
        made(instead=loop(NEXT, REF, TRAIN, when(MicroIs(-1), "look", "mb"))),
        "`m == -1` is never true",
        "look",
    ),
    Case(
        "ST158",
        lambda: replace(step(), resources=step().resources[1:]),
        "and no resource of that name is declared",
        "initial_sync",
    ),
    Case(
        "ST158",
        lambda: replace(step(), resources=(*step().resources, Resource("scratch", ResourceKind.STATE))),
        "no op touches the resource `scratch`",
        "",
    ),
    Case(
        "ST159",
        made(first=op("commit")),
        "`commit` stands before the first step, and is counted step by step",
        "commit",
        made(first=op("save_checkpoint"), at_end=op("save_checkpoint")),
    ),
    Case("ST159", made(at_end=op("update")), "`update.2` stands after the last step", "update.2"),
    Case(
        "ST160",
        made(without=("pack", "update"), instead={"loop": OLD_IN_PARTS}),
        "`old_logps` makes the old log-probs with weights that `update` has moved since the rollout",
        "old_logps",
        made(instead=loop(NEXT, op("old_logps", "mb"), TRAIN)),
    ),
    Case(
        "ST161",
        made(before={"update": op("mean")}),
        "`update` divides the gradient by its count, and `mean` has divided it",
        "update",
        made(before={"update": op("clip")}),
    ),
    Case("ST004", lambda: _changed("update", kind="updat"), "no op is called `updat`", "update"),
    Case(
        "ST006",
        lambda: _changed("reward", results=(Result("scored", Type("groups")),)),
        "`reward` gives groups<rewards> here, not groups",
        "reward",
    ),
    Case("ST009", lambda: _changed("update", args=(Use("batch"),)), "`update` takes (), not 1 operand", "update"),
    Case("ST008", lambda: _changed("update", attrs=(("x", 1),)), "`update` has no attribute `x`", "update"),
    Case("ST010", lambda: _changed("update", lane="moon"), "`moon` is no lane", "update"),
    Case("ST012", made(contract=Contract(staleness=-1)), "the staleness is a number of updates, 0 or more, not -1", ""),
    Case("ST012", made(contract=Contract("newest")), "`weights` of the contract is one of pinned, freshest", ""),
    Case(
        "ST013",
        lambda: step(kinds=(OpKind("mark", writes=("params[k]",), user=True),), after={"log": op("mark")}),
        "`mark` writes `params[k]`, but `params` is one state",
        "mark",
    ),
    Case("ST014", lambda: step(kinds=(OpKind("update", user=True),)), "`update` is a built-in op", ""),
    Case("ST015", lambda: _changed("update", id="my update"), "'my update' cannot be written as a name", "my update"),
    Case("ST015", made(after={"log": when(Has("a b"), "look", "metrics")}), "'a b' cannot be written", "look"),
]


IDS = [f"{case.code} {case.says}" for case in CASES]


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_step_that_breaks_a_rule_is_refused(case: Case) -> None:
    found = problems(case.refused())
    told = [problem for problem in found if problem.code == case.code and case.says in problem.message]
    assert told, [str(problem) for problem in found]
    line = _line(case)
    assert line is None or told[0].loc == line


def _line(case: Case) -> Loc | None:
    """Where the user wrote the op that the case is about."""
    if not case.at:
        return Loc("train.py", 2) if case.refused().carries == () else None
    return next(op.loc for op in case.refused().ops() if op.id == case.at) if case.at in _ids(case) else None


def _ids(case: Case) -> set[str]:
    return {op.id for op in case.refused().ops()}


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_its_neighbour_is_accepted(case: Case) -> None:
    assert [str(problem) for problem in problems(case.accepted())] == []


NO_TEXT = ("`every 0`", "join two", "`m == -1`", "starts from -1")
"""What the parser refuses already, or no text can say."""

IN_TEXT = [case for case in CASES if case.code >= "ST130" and case.at and not case.says.startswith(NO_TEXT)]


@pytest.mark.parametrize("case", IN_TEXT, ids=lambda case: f"{case.code} {case.says}")
def test_a_parsed_program_is_refused_with_the_line_of_its_text_and_of_the_dsl(case: Case) -> None:
    text = print_program(case.refused())
    parsed = parse(text, "p.st")
    told = [problem for problem in problems(parsed.program, parsed.places) if problem.code == case.code]
    loc = told[0].loc
    assert loc is not None
    assert loc.file == "p.st"
    line = text.split("\n")[loc.line - 1]
    assert told[0].source == line
    assert 1 <= loc.column <= len(line) + 1
    node = next((op for op in parsed.program.ops() if parsed.places.at(op.id).line == loc.line), None)
    if node is not None and node.loc is not None:
        assert told[0].notes[0].loc == node.loc


def test_a_resource_that_lost_its_op_may_be_right_and_the_op_missing() -> None:
    text = "\n".join(line for line in print_program(step()).splitlines() if " log(" not in line)
    (found,) = (problem for problem in problems(parse(text, "p.st").program) if problem.code == "ST158")
    assert found.message == "no op touches the resource `log`"
    assert "if its line is gone from the text" in found.help


def test_verify_raises_the_first_problem() -> None:
    program = step(without=("update", "commit"))
    first, *others = problems(program)
    assert (first.code, [other.code for other in others]) == ("ST139", ["ST148"])
    with pytest.raises(type(first), match="no op of the step applies the gradients"):
        verify(program)


def test_removing_the_line_of_any_needed_op_is_refused() -> None:
    text = print_program(step())
    for word in ("dispatch", "take", "next_mb", "fwd_bwd", "update", "get_metrics", "sync_weights", "commit"):
        lines = [line for line in text.splitlines() if f"{word}(" not in line]
        parsed = parse("\n".join(lines), "p.st")
        assert problems(parsed.program, parsed.places), word


def test_items_that_are_wrong_by_themselves_are_told_alone() -> None:
    program = _changed("update", kind="updat")
    assert [problem.code for problem in problems(program)] == ["ST004"]


# Manual pages

OWN = ("steptrace.diag.text", "steptrace.diag.structure")
CODES = [code for code, error in all_codes().items() if error.__module__.startswith(OWN)]
BY_PARSER = {"ST001", "ST002", "ST003", "ST005", "ST011"}


@pytest.mark.parametrize("code", CODES)
def test_each_code_has_a_page_with_an_example_and_a_way_out(code: str) -> None:
    page = manual_page(code)
    assert page is not None
    assert "Example::" in page
    assert "Ways out:" in page


def test_each_code_is_raised_by_a_case_of_these_tests() -> None:
    assert {case.code for case in CASES} | BY_PARSER | {"ST162"} == set(CODES)


NOTES = (Resource("notes.seen", ResourceKind.CELL),)

TOO_EARLY = [
    (made(without=("commit",), before={"sync": op("commit")}), "commit", "policy.version", "sync_weights"),
    (made(without=("log",), before={"commit": op("log", "metrics", loc=Loc("train.py", 14))}), "", "", ""),
    (made(without=("log",), before={"sync": op("log", "metrics")}), "log", "policy.version", "sync_weights"),
    (made(resources=NOTES, before={"update": op("tally")}, after={"log": op("note")}), "tally", "notes.seen", "note"),
    (made(resources=NOTES, before={"update": op("note")}, after={"log": op("tally")}), "", "", ""),
    (made(resources=NOTES, before={"update": op("recall")}, after={"log": op("note")}), "", "", ""),
    (made(resources=NOTES, after={"commit": op("adjust")}), "", "", ""),
    (
        made(resources=NOTES, after={"log": when(Every(2), "note"), "commit": op("tally")}),
        "tally",
        "notes.seen",
        "note",
    ),
    (made(resources=NOTES, after={"log": op("tally")}), "", "", ""),
]


@pytest.mark.parametrize(("program", "reader", "cell", "writer"), TOO_EARLY)
def test_a_cell_is_not_read_above_the_op_of_its_step_that_writes_it(program, reader, cell, writer) -> None:
    found = problems(program(), own_order=True)
    said = f"`{reader}` reads `{cell}[k]`, which `{writer}` writes only after it"
    assert [problem.code for problem in found] == ["ST162"] * bool(reader)
    assert all(problem.message.startswith(said) for problem in found)
    assert all(problem.help == f"move `{reader}` below `{writer}`" for problem in found)


def test_control_the_order_of_a_schedule_is_asked_of_its_source() -> None:
    assert problems(TOO_EARLY[0][0]()) == []
