"""Every edit of a single token is refused with its place, or the program it stands for prints as edited."""

from collections import Counter
from collections.abc import Iterator

import pytest
from step_stages import NEXT, REF, micro_batches, op, step

from steptrace.diag import SteptraceError
from steptrace.ir import (
    And,
    Attr,
    Every,
    First,
    Flag,
    Given,
    Has,
    MicroIs,
    Not,
    Operand,
    OpKind,
    Or,
    Origin,
    Parsed,
    Program,
    Use,
    parse,
    print_program,
    problems,
)
from steptrace.ir.lexer import Token, lines_of, tokens_of

JUDGE = OpKind(
    "judge",
    (Operand("groups", "groups", ("rewards",)),),
    (Given("judged", "groups", "groups", ("grades",)),),
    (Attr("scale", float, 0.5, (0.5, 1.0), "how much"), Attr("deep", bool)),
    reads=("host[k]", "rollout.weights[k-1-w]"),
    writes=("log",),
    lane="judge",
    cost="wait",
    user=True,
)
LOOK = OpKind("look", (Operand("it", None),), (Given("seen", "scalar"),), writes=("log",), user=True)


def _program() -> Program:
    """A program whose text has every phrase of the grammar."""
    arm = Flag("last")
    loop = micro_batches(
        NEXT,
        REF,
        op("fwd_bwd", "mb.2", when=arm, id="closing", origin=Origin("fwd_bwd", "last")),
        op("fwd_bwd", "mb.2", when=Not(arm), origin=Origin("fwd_bwd", "rest")),
        lambda build: build.op("look", Use("mb", 0, -1), names=("before",), when=Or((First(), MicroIs(1)))),
    )
    return step(
        kinds=(JUDGE, LOOK),
        carries=(("coef", 0.1),),
        instead={"loop": loop},
        after={
            "reward": op("judge", "scored", scale=0.5, deep=True, nbytes=64),
            "update": lambda build: build.op("look", Use("coef", -1), names=("coef",)),
            "sync": op("save_checkpoint", when=And((Every(10), Has("disk"))), lane="io"),
            "log": op("on_step_end", reads=("metrics",), writes=(), shift=-1),
        },
    )


PROGRAM = _program()
TEXT = print_program(PROGRAM)
SAID_TWICE = ["micro_batches micro_batches"]
"""Edits after which the text says the same in more words."""
LINES = lines_of(TEXT)
TOKENS = [token for token in tokens_of(LINES, "-") if token.kind not in ("newline", "end")]


def _spelled(token: Token) -> str:
    return f"%{token.text}" if token.kind == "value" else token.text


def _replacements(token: Token) -> Iterator[str]:
    """What an edit makes of a token: another of its kind, nothing, itself twice."""
    text = _spelled(token)
    yield from ("", f"{text} {text}")
    if token.kind == "name":
        yield from ("zzz", f"{text}x", f"{text}.2")
        yield {"true": "false", "false": "true", "reads": "writes", "writes": "reads"}.get(text, "params")
    elif token.kind == "value":
        yield from ("%zzz", "%mb", "%groups", "%last")
    elif token.kind == "number":
        yield from (f"{text}1", "0", "2", "0.25")
    elif token.kind == "string":
        yield from ('"zzz"', "zzz")
    else:
        yield from {"+": ("-",), "-": ("+",), "[": ("(",), "@": ("=",)}.get(text, ())


def _edits() -> Iterator[tuple[Token, str, str]]:
    for token in TOKENS:
        line = LINES[token.line - 1]
        end = token.column - 1 + len(_spelled(token))
        for new in _replacements(token):
            edited = line[: token.column - 1] + new + line[end:]
            if edited != line:
                yield token, new, "\n".join((*LINES[: token.line - 1], edited, *LINES[token.line :]))


def _words(text: str) -> list[object]:
    """The tokens of a text without their places; numbers by their value, since `0` may print as `0.0`."""
    tokens = tokens_of(lines_of(text), "-")
    return [float(token.text) if token.kind == "number" else (token.kind, token.text) for token in tokens]


def _checked(text: str) -> tuple[Parsed | None, list[SteptraceError]]:
    """What a text stands for, and what is wrong with it."""
    try:
        parsed = parse(text, "edited.st")
    except SteptraceError as error:
        return None, [error]
    return parsed, problems(parsed.program, parsed.places)


@pytest.mark.slow
def test_no_edit_of_a_token_is_accepted_silently() -> None:
    outcomes: Counter[str] = Counter()
    same: list[str] = []
    for token, new, text in _edits():
        parsed, found = _checked(text)
        for problem in found:
            assert problem.loc is not None, (token, new, problem)
            assert problem.loc.column >= 1, (token, new, problem)
        if parsed is not None and parsed.program == PROGRAM:
            same.append(new)
        elif parsed is not None:
            assert _words(print_program(parsed.program)) == _words(text), (token, new)
        outcomes["not parsed" if parsed is None else "not well formed" if found else "another program"] += 1
    assert outcomes["not parsed"] > outcomes["not well formed"] > 20, outcomes
    assert outcomes["another program"] > 20, outcomes
    assert same == SAID_TWICE


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("rollout.weights[k-1]] writes[prompts", "rollout.weights[k-2]] writes[prompts", "ST005"),
        ("fwd_bwd(%mb.2) lane=host when(not", "fwd_bwd(%mb.3) lane=host when(not", "ST130"),
        ("fwd_bwd(%mb.2) lane=host when(not", "fwd_bwd(%batch) lane=host when(not", "ST134"),
        ("log(%metrics)", "log(%batch)", "ST134"),
        ("pack(%advantaged)", "pack(%scored)", "ST134"),
        ("when(%last) from", "when(%mb) from", "ST135"),
        ("look(%coef@k-1)", "look(%coef@k-2)", "ST132"),
        ("look(%mb@m-1)", "look(%batch@m-1)", "ST133"),
    ],
)
def test_an_edit_of_an_effect_a_distance_or_an_operand_is_refused_at_its_place(old: str, new: str, code: str) -> None:
    assert TEXT.count(old) == 1
    text = TEXT.replace(old, new)
    differ = next(at for at, (one, other) in enumerate(zip(TEXT, text, strict=False)) if one != other)
    error = _checked(text)[1][0]
    assert error.code == code, error
    assert error.loc is not None
    assert error.loc.line == text.count("\n", 0, differ) + 1, error
    start = text.rfind("\n", 0, differ) + 1
    assert error.loc.column <= differ - start + 1, error
    assert "edited.st:" in str(error).splitlines()[1]


def test_control_the_text_itself_is_accepted() -> None:
    parsed = parse(TEXT)
    assert print_program(parsed.program) == TEXT
    assert problems(parsed.program, parsed.places) == []
