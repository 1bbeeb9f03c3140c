"""Each refusal of the parser: its code, line, column, and what it says. Edits are made to a dumped program."""

import pytest
from step_stages import step

from steptrace.diag import Loc, SteptraceError
from steptrace.ir import Attr, Given, Operand, OpKind, parse, print_program

PENALTY = OpKind(
    "penalty",
    (Operand("groups", "groups"),),
    (Given("groups", "groups", "groups", ("penalised",)),),
    (Attr("scale", float), Attr("mode", str, None, ("linear", "square"))),
    reads=("host[k]",),
    writes=("log",),
    lane="judge",
    user=True,
)
TEXT = print_program(
    step(
        kinds=(PENALTY,),
        carries=(("coef", 0.1),),
        after={
            "take": lambda build: build.op("penalty", "groups", names=("penalised",), scale=0.5, mode="linear"),
            "get_metrics": lambda build: build.op("on_step_end", reads=("metrics",)),
        },
    )
)

# Code, what is edited, what it becomes with ¶ where the error must point, part of the message; and, where the error
# points elsewhere, the piece of the text at whose start that is.
EDITS: list[tuple[str, ...]] = [
    ("ST001", "steptrace 1\n", "steptrace ¶2\n", "version 2 of the text form; this steptrace reads version 1"),
    ("ST002", "steptrace 1\nfile", "¶file", "expected `steptrace 1` on the first line, found `file`"),
    ("ST002", "program grpo", "¶programm grpo", "expected `program`, found `programm`"),
    ("ST002", "program grpo", "file ¶x\nprogram grpo", "expected the number of the file, found `x`"),
    ("ST002", "update() lane", "update( ¶lane", "expected an operand `%name`, found `lane`"),
    ("ST002", "update() lane", "update() ¶lanes", "expected `lane` after the operands and attributes"),
    ("ST002", "fwd_bwd(%mb.2)", "fwd_bwd(¶mb.2)", "expected an operand `%name`, found `mb.2`"),
    ("ST002", "fwd_bwd(%mb.2)", "fwd_bwd(%mb.2 ¶%last)", "expected `,` or `)` after an operand, found `%last`"),
    ("ST002", "fwd_bwd(%mb.2)", "fwd_bwd(%mb.2@¶j-1)", "expected `k` or `m`, found `j`"),
    ("ST002", "fwd_bwd(%mb.2)", "fwd_bwd(%mb.2@m ¶1)", "expected `+` or `-`, found `1`"),
    ("ST002", "%scored : groups<", "%scored ¶groups<", "expected `:` after the name of a result"),
    ("ST002", "%scored : groups<", "%scored : ¶group<", "expected a type (prompts, groups, "),
    ("ST002", "= reward(", "¶reward(", "expected `,` or `=` after the type of a result, found `reward`"),
    ("ST002", "= reward(", ", ¶= reward(", "expected a result `%name : type`, found `=`"),
    ("ST002", "{prompts=4,", "{prompts=¶,", "expected a value: `true`, `false`, a number"),
    ("ST002", "{prompts=4,", "{prompts ¶4,", "expected `=` after the name of an attribute, found `4`"),
    ("ST002", "samples=2} lane", "samples=2 ¶lane", "expected `,` or `}` after a value, found `lane`"),
    ("ST002", "commit() lane=host", "commit() lane=host when(¶sometimes)", "expected a condition: `first`"),
    ("ST002", "commit() lane=host", "commit() lane=host when(every ¶0)", "a number of steps, at least 1, found `0`"),
    ("ST002", "commit() lane=host", "commit() lane=host when(first ¶last)", "expected `)` after the condition"),
    ("ST002", "commit() lane=host", "commit() lane=host when((first ¶%x))", "expected `and`, `or` or `)`"),
    ("ST002", "commit() lane=host", "commit() lane=host when(m == ¶-1)", "the number of a micro-batch, from 0"),
    ("ST002", "commit() lane=host", "commit() lane=host shift=¶1", "expected `+` or `-`, found `1`"),
    ("ST002", "commit() lane=host", "commit() lane=host shift=+¶1.5", "expected a number of steps, found `1.5`"),
    (
        "ST002",
        "commit() lane=host",
        "commit() lane=host ¶lane=io",
        "expected `reads`, `writes`, `awaits`, `@`, the end",
    ),
    ("ST002", "commit() lane=host", "commit() lane=host at(¶k=1)", "expected `m`, found `k`"),
    ("ST002", "rollout.weights[k-1]", "rollout.weights[¶j-1]", "expected `k`, found `j`"),
    ("ST002", "rollout.weights[k-1]] writes", "rollout.weights[k-1] ¶writes", "expected `,` or `]` after an effect"),
    ("ST002", "reads[reference.params]", "reads[¶]", "expected a resource, found `]`"),
    ("ST002", "reads[reference.params]", "reads ¶reference.params", "expected `[`, found `reference.params`"),
    ("ST002", "loop micro_batches: m", "loop ¶batches: m", "expected a loop (micro_batches, repeat, mini_batches)"),
    ("ST002", "micro_batches: m in", "micro_batches m ¶in", "expected `:`, found `in`"),
    ("ST002", "m in %batch { @", "m in %batch ¶@", "expected `{`, found `@`"),
    ("ST002", "m in %batch {", "m in %batch times ¶two {", "expected how often the loop runs, found `two`"),
    ("ST002", "\n}\nstep k", "\n¶step k", "expected an op, `loop` or the `}` that closes the block, found `step`"),
    ("ST002", "step k {", "step ¶j {", "expected `k`, found `j`"),
    ("ST002", "step k {", "step k { ¶free()", "expected the end of the line, found `free`"),
    ("ST002", "resource rng : state", "resource rng : ¶stack", "expected `state` or `fifo` or `channel` or"),
    ("ST002", "resource rng : state", "¶rng : state", "expected `resource` or the end of the text"),
    ("ST002", "carry %coef = 0.1", "carry %coef = ¶high", "expected the number before step 0, found `high`"),
    ("ST002", "carry %coef = 0.1", "carry ¶coef = 0.1", "expected the value that is carried, `%name`"),
    ("ST002", "staleness=0", "staleness=¶1.5", "expected a number of updates, 0 or more, found `1.5`"),
    ("ST002", "partial=train empty=skip", "¶empty=skip", "expected `partial`, found `empty`"),
    ("ST002", "@1:3\n", "@1¶\n", "expected `:`, found the end of the line"),
    ("ST002", "(groups: groups) ->", "(groups¶) ->", "expected `:` after the name of an operand, found `)`"),
    ("ST002", "(groups: groups) ->", "(groups: groups ¶->", "expected `,` or `)` after an operand"),
    ("ST002", "scale: float,", "scale: ¶double,", "expected `bool` or `int` or `float` or `str` or `tuple`"),
    ("ST002", "writes[log]\n", "writes[log[k¶\n", "expected `]`, found the end of the line"),
    ("ST002", "writes[log]\n", "writes[log] cost=¶1\n", "expected a str for `cost`, found `1`"),
    ("ST003", '"train.py"', '¶"train.py', 'the string has no closing `"` on its line'),
    ("ST003", '"train.py"', '¶"train\\x.py"', "an escape that JSON does not know"),
    ("ST003", "fwd_bwd(%mb.2)", "fwd_bwd(¶% mb.2)", "expected the name of a value after `%`"),
    ("ST003", "update() lane", "update()¶; lane", "unexpected character `;`"),
    ("ST004", "fwd_bwd(%mb.2)", "¶fwd_bwdd(%mb.2)", "no op is called `fwd_bwdd`"),
    (
        "ST005",
        "rollout.weights[k-1]",
        "¶rollout.weights[k-2]",
        "reads `rollout.weights[k-1]`, not `rollout.weights[k-2]`",
    ),
    ("ST005", "staleness=0", "staleness=1", "`dispatch` reads `rollout.weights[k-2]`", "rollout.weights[k-1]"),
    ("ST005", "writes[grads, trainer.calls, ", "writes¶[grads, ", "`fwd_bwd` writes `trainer.calls`, which its line"),
    (
        "ST005",
        "reads[reference.params]",
        "reads[¶params, reference.params]",
        "does not have `params` among what it reads",
    ),
    ("ST005", "reads[reference.params] @", "¶@", "`ref_logps` reads `reference.params`, which its line leaves out"),
    ("ST005", "reads[grads, params]", "reads[grads, ¶param]", "`fwd_bwd` does not have `param` among what it reads"),
    ("ST005", "reads[grads, params]", "reads[¶params, grads]", "`grads` stands before `params`"),
    ("ST005", "reads[grads, params]", "reads[grads, ¶grads]", "`fwd_bwd` shows `grads` twice"),
    ("ST005", "reads[host[k], packer]", "reads[¶host, packer]", "reads `host[k]`, not `host`"),
    ("ST005", '("metrics")} lane=host reads[', '("params")} lane=host reads[¶', "does not have `metrics[k]` among"),
    ("ST006", "%scored : groups<rewards>", "¶%scored : groups<advantages>", "`reward` gives groups<rewards> here"),
    (
        "ST006",
        "%mb.2 : micro_batch<advantages, ",
        "¶%mb.2 : micro_batch<",
        "`ref_logps` gives micro_batch<advantages, ref",
    ),
    ("ST006", "%last : flag", "¶%last : scalar", "`next_mb` gives flag here, not scalar"),
    ("ST007", "update() lane", "¶fwd_bwd: update() lane", "`fwd_bwd` is the id of two ops or loops"),
    ("ST007", "{prompts=4, samples", "{samples=4, ¶samples", "`samples` is given twice"),
    ("ST007", "resource rng : state\n", "resource rng : state\nresource ¶rng : state\n", "`rng` is declared twice"),
    ("ST007", "carry %coef = 0.1\n", "carry %coef = 0.1\ncarry ¶%coef = 1.0\n", "`%coef` is carried twice"),
    ("ST007", "op penalty", "op penalty() lane=host\nop ¶penalty", "two rows are called `penalty`"),
    ("ST007", "program grpo", 'file ¶1 "b.py"\nprogram grpo', "`file 1` is declared twice"),
    ("ST008", "{prompts=4,", '{¶prompts="4",', '`prompts` of `dispatch` is a whole number, not "4"'),
    ("ST008", "{prompts=4,", "{¶prompts=true,", "`prompts` of `dispatch` is a whole number, not true"),
    ("ST008", "dispatch() {prompts=4,", "¶dispatch() {prompt=4,", "`dispatch` needs the attribute `prompts`"),
    ("ST008", ", scale=0.5}", ", ¶size=0.5}", "`penalty` has no attribute `size`"),
    ("ST008", '{mode="linear", ', '{¶mode="cubic", ', '`mode` of `penalty` is one of "linear", "square", not "cubic"'),
    ("ST003", "{prompts=4,", f"{{prompts=¶{'9' * 401},", "a number has at most 400 digits"),
    ("ST003", "commit() lane=host", f"commit() lane=host shift=+¶{'9' * 5000}", "a number has at most 400 digits"),
    ("ST002", "commit() lane=host", f"commit() lane=host when({'(' * 60}¶(", "60 stand inside one another"),
    ("ST002", "commit() lane=host", f"commit() lane=host when({'not ' * 60}¶not ", "60 stand inside one another"),
    ("ST008", "{prompts=4,", "{¶prompts=0,", "`prompts` of `dispatch` is at least 1, not 0"),
    ("ST003", "{prompts=4,", "{prompts=¶\u0664,", "unexpected character"),
    ("ST008", '{estimator="grpo"', '{¶estimator="gae"', "`estimator` of `advantages` is one of"),
    ("ST008", '{reads=("metrics")', '{¶reads=("metrics[j]")', "`metrics[j]` is not an effect"),
    ("ST009", "update()", "update¶(%batch)", "`update` takes (), not 1 operand"),
    (
        "ST009",
        "%mb : micro_batch<advantages, rewards>, %last : flag",
        "¶%mb : micro_batch",
        "gives (mb, last), not 1 result",
    ),
    ("ST010", "update() lane=host", "update() lane=¶hots", "`hots` is no lane"),
    ("ST011", "@1:3\n", "@¶2:3\n", "no `file 2` line stands above"),
    ("ST012", "staleness=0", "staleness=¶-1", "the staleness is a number of updates, 0 or more"),
    (
        "ST012",
        "weights=pinned",
        "weights=¶newest",
        "`weights` of the contract is one of pinned, freshest, not `newest`",
    ),
    ("ST013", "resource rng : state", "resource ¶rng : fifo", "the built-in resource `rng` is a state, not a fifo"),
    ("ST013", "resource rng : state", "resource ¶x : slot(0)", "slot `x` must hold at least one entry"),
    ("ST014", "op penalty(", "op ¶update(", "`update` is a built-in op"),
    (
        "ST014",
        "op penalty(groups: groups)",
        "op ¶penalty(group: groups)",
        "of `groups`, which is no operand of `penalty`",
    ),
    ("ST014", "op penalty(", "op ¶bad() lane=host reads[host[j]]\nop penalty(", "`host[j]` is not an effect"),
]


def edited(old: str, new: str, far: str = "") -> tuple[str, int, int]:
    """The dumped text after an edit, and the line and column at which the error must point."""
    assert TEXT.count(old) >= 1, f"`{old}` is not in the text"
    at = TEXT.index(old)
    text = TEXT[:at] + new.replace("¶", "") + TEXT[at + len(old) :]
    pointed = text.index(far) if far else at + new.index("¶")
    return text, text.count("\n", 0, pointed) + 1, pointed - text.rfind("\n", 0, pointed)


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: f"{edit[0]} {edit[2]!r}")
def test_an_edit_is_refused_with_its_place(edit: tuple[str, ...]) -> None:
    code, old, new, message, *far = edit
    text, line, column = edited(old, new, *far)
    with pytest.raises(SteptraceError) as caught:
        parse(text, "edited.st")
    error = caught.value
    assert error.code == code, error
    assert message in error.message
    assert error.loc == Loc("edited.st", line, column), error
    assert error.source == text.split("\n")[line - 1]


def test_control_the_unedited_text_parses() -> None:
    assert print_program(parse(TEXT).program) == TEXT


def test_an_error_shows_the_line_with_a_caret() -> None:
    with pytest.raises(SteptraceError) as caught:
        parse(TEXT.replace("lane=host reads[host[k], packer]", "lane=hst reads[host[k], packer]"), "-")
    lines = str(caught.value).splitlines()
    assert lines[0] == "error[ST010]: `hst` is no lane"
    assert lines[2].index("^") == lines[1].index("hst")


def test_effects_of_another_staleness_are_told_with_the_contract() -> None:
    edited = TEXT.replace("staleness=0", "staleness=2")
    with pytest.raises(SteptraceError) as caught:
        parse(edited, "-")
    error = caught.value
    assert (error.code, error.message) == (
        "ST005",
        "`dispatch` reads `rollout.weights[k-3]`, not `rollout.weights[k-1]`",
    )
    (note,) = error.notes
    assert note.text.startswith("its effects are those of staleness=0, and the contract says staleness=2")
    assert note.loc is not None
    assert edited.splitlines()[note.loc.line - 1].startswith("contract ")


def test_control_effects_that_no_staleness_gives_have_no_such_note() -> None:
    with pytest.raises(SteptraceError) as caught:
        parse(TEXT.replace("reads[host[k], packer]", "reads[host[k-1], packer]"), "-")
    assert (caught.value.code, caught.value.notes) == ("ST005", ())


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n"])
def test_an_empty_text_is_refused(text: str) -> None:
    with pytest.raises(SteptraceError, match=r"expected `steptrace 1` on the first line, found the end of the text"):
        parse(text)


def test_a_text_that_ends_early_is_refused_at_its_end() -> None:
    with pytest.raises(SteptraceError) as caught:
        parse("steptrace 1\nprogram p\ncontract weights=pinned staleness=0 partial=train empty=skip\nbefore {\n")
    assert (caught.value.loc.line, caught.value.loc.column) == (5, 1)
    assert "found the end of the text" in caught.value.message


def test_users_ops_parse_without_their_python() -> None:
    program = parse(TEXT).program
    assert program.kinds == (PENALTY,)
    assert next(op for op in program.ops() if op.kind == "penalty").attr("scale") == 0.5


def test_loops_inside_loops_end_somewhere() -> None:
    text = TEXT.replace(
        "  commit()", "".join(f"  loop repeat r{n}: e{n} times 2 {{\n" for n in range(2000)) + "  commit()"
    )
    with pytest.raises(SteptraceError, match="60 stand inside one another") as caught:
        parse(text, "step.st")
    assert caught.value.loc is not None
    assert caught.value.loc.column == 3


def test_control_what_nests_less_deep_is_read() -> None:
    inside = f"when({'not (' * 29}first{')' * 29})"
    assert "not first" in print_program(
        parse(TEXT.replace("update() lane=host", f"update() lane=host {inside}"), "x").program
    )
