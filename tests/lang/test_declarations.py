"""How programs, ops and resources are declared: what is accepted, and what is refused with the line of the `def`."""

from __future__ import annotations

import inspect

import pytest

import steptrace
from steptrace import SteptraceError
from steptrace.diag.loc import Loc
from steptrace.ir.kind import REQUIRED, Attr, Given, Operand
from steptrace.ir.program import Contract
from steptrace.ir.resource import Resource, ResourceKind
from steptrace.lang.parameters import Parameter
from steptrace.lang.user_ops import implementation


def line_here() -> int:
    """The line of the caller."""
    return inspect.currentframe().f_back.f_lineno


def failure(code: str, action) -> SteptraceError:
    with pytest.raises(SteptraceError) as caught:
        action()
    assert caught.value.code == code, caught.value.render()
    assert caught.value.loc.file == __file__
    return caught.value


def groups_only(groups): ...


# Programs


def test_parameters_come_from_defaults_and_annotations():
    @steptrace.program(name="another", staleness=2)
    def mine(step, prompts=4, *, rate: float = 1, tag: str, fast=True):
        """What it does."""

    assert mine.name == "another"
    assert mine.doc == "What it does."
    assert mine.contract == Contract(staleness=2)
    assert mine.parameters == (
        Parameter("prompts", int, 4),
        Parameter("rate", float, 1.0),
        Parameter("tag", str),
        Parameter("fast", bool, True),
    )


def test_the_place_of_a_program_is_its_def():
    @steptrace.program
    # a comment between
    def mine(step): ...

    assert mine.loc == Loc(__file__, line_here() - 2)


def generator(step):
    yield


async def coroutine(step): ...


@pytest.mark.parametrize(
    "function",
    [
        lambda: None,
        lambda *steps: None,
        lambda step, *sizes: None,
        lambda step, **sizes: None,
        lambda step, size: None,
        lambda step, size=None: None,
        lambda step, size=(1, 2): None,
        lambda step, staleness=1: None,
        generator,
        coroutine,
        3,
        print,
    ],
)
def test_functions_that_are_no_program(function):
    failure("ST114", lambda: steptrace.program(function))


def test_annotations_decide_and_defaults_must_fit_them():
    def wrong(step, prompts: int = "many"): ...

    assert failure("ST114", lambda: steptrace.program(wrong)).loc.line == line_here() - 2


@pytest.mark.parametrize(
    "option",
    [
        {"staleness": -1},
        {"staleness": 1.0},
        {"staleness": True},
        {"staleness": None},
        {"weights": "pined"},
        {"partial": "keep"},
        {"empty": ""},
        {"sync": "async"},
    ],
)
def test_options_of_the_contract(option):
    failure("ST116", lambda: steptrace.program(**option))


def test_an_option_of_the_contract_is_checked_when_tracing_too():
    @steptrace.program
    def mine(step): ...

    assert failure("ST116", lambda: mine.trace(staleness=-1)).message == "`staleness` is a number of updates, not -1"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"promts": 1, "tag": "a"}, "`mine` has no parameter `promts`; it has: prompts=4, rate=1.0, tag"),
        ({}, "`mine` needs its parameter `tag`"),
        ({"tag": 3}, "`tag` of `mine` is a str, not 3"),
        ({"tag": "a", "prompts": 1.5}, "`prompts` of `mine` is an int, not 1.5"),
        ({"tag": "a", "prompts": True}, "`prompts` of `mine` is an int, not True"),
    ],
)
def test_parameters_when_tracing(given, message):
    @steptrace.program
    def mine(step, prompts=4, rate=1.0, *, tag: str): ...

    assert failure("ST115", lambda: steptrace.trace(mine, **given)).message == message


@pytest.mark.parametrize(
    ("code", "given", "help"),
    [
        ("ST115", {"promts": 1}, "did you mean `prompts`?"),
        ("ST115", {"stalenes": 1}, "did you mean `staleness`?"),
        ("ST115", {"zzz": 1}, "the contract's options are "),
        ("ST116", {"weights": "pined"}, "did you mean `pinned`?"),
    ],
)
def test_the_parameter_that_was_meant_is_named(code, given, help):
    @steptrace.program
    def mine(step, prompts=4): ...

    assert failure(code, lambda: mine.trace(**given)).help.startswith(help)


def test_the_option_that_was_meant_is_named():
    assert failure("ST116", lambda: steptrace.program(stalenes=1)).help == "did you mean `staleness`?"


def test_only_programs_are_traced():
    failure("ST124", lambda: steptrace.trace(groups_only))
    failure("ST124", lambda: steptrace.trace("grpo"))


# Ops


def test_a_positional_parameter_without_a_default_is_an_operand_even_when_annotated():
    with pytest.raises(SteptraceError) as caught:

        @steptrace.op(takes=("groups",))
        def limited(groups, limit: int): ...

    assert caught.value.code == "ST117"
    assert caught.value.message == (
        "`limited(groups, limit: 'int')` has 2 operands (positional parameters without a default), "
        "and `takes` has 1 type"
    )
    assert caught.value.loc == Loc(__file__, line_here() - 7)


def test_attributes_and_results_of_a_row():
    @steptrace.op(takes=("groups<rewards>", "micro_batch"), gives=["micro_batch<weights>", "kept: groups", "scalar"])
    def mixed(groups, mb, low=0.5, *, limit: int, tags: tuple[str, ...] = ("a",), names=["b"], rest: str = None): ...  # noqa: B006, RUF013

    assert mixed.kind.operands == (Operand("groups", "groups", ("rewards",)), Operand("mb", "micro_batch"))
    assert mixed.kind.results == (
        Given("mb", "micro_batch", "mb", ("weights",)),
        Given("kept", "groups", "groups"),
        Given("scalar", "scalar"),
    )
    assert mixed.kind.attrs == (
        Attr("low", float, 0.5),
        Attr("limit", int, REQUIRED),
        Attr("tags", tuple, ("a",)),
        Attr("names", tuple, ("b",)),
        Attr("rest", str),
    )


@pytest.mark.parametrize(
    "options",
    [
        {"takes": ()},
        {"takes": ("groups", "groups")},
        {"takes": "groups"},
        {"takes": ("group",)},
        {"takes": ("groups<rewards",)},
        {"takes": ("groups<a b>",)},
        {"takes": ("groups",), "gives": "any"},
        {"takes": ("groups",), "gives": ("groups", "groups")},
        {"takes": ("groups",), "gives": 3},
        {"takes": ("groups",), "lane": "my lane"},
        {"takes": ("groups",), "name": "update"},
        {"takes": ("groups",), "name": "two words"},
    ],
)
def test_declarations_that_do_not_fit(options):
    error = failure("ST117", lambda: steptrace.op(**options)(groups_only))
    assert error.loc == Loc(__file__, groups_only.__code__.co_firstlineno)


@pytest.mark.parametrize(
    "function",
    [lambda: 0, len, lambda *, size: 0, lambda *, size={}: 0, lambda *, size=b"": 0, lambda *a: 0, lambda **k: 0],
)
def test_functions_that_are_no_op_or_an_op_without_a_name(function):
    failure("ST117", lambda: steptrace.op(function))


@pytest.mark.parametrize("pattern", ["hots", "host[j]", "host[k", "", "queue", 3, "host [k]"])
def test_effects_that_name_no_resource(pattern):
    failure("ST119", lambda: steptrace.op(takes=("groups",), reads=[pattern])(groups_only))


def test_effects_given_as_one_string():
    failure("ST119", lambda: steptrace.op(takes=("groups",), writes="host")(groups_only))


def test_a_misspelt_resource_is_proposed_in_the_right_spelling():
    error = failure("ST119", lambda: steptrace.op(takes=("groups",), reads=["hots[k]"])(groups_only))
    assert error.help.startswith("did you mean `host`?")


def test_effects_of_a_callback_are_checked_at_the_call():
    @steptrace.program
    def mine(step):
        step.on_step_end(reads=["metric"])

    error = failure("ST119", mine.trace)
    assert error.loc.line == line_here() - 3


def test_two_functions_of_one_name_clash_in_one_program_only():
    a = steptrace.op(takes=("groups",), gives="groups", name="same", reads=[], writes=[])(lambda groups: groups)
    b = steptrace.op(takes=("groups",), gives="groups", name="same", reads=[], writes=[])(lambda groups: [])

    def step_with(*ops):
        @steptrace.program
        def mine(step):
            step.dispatch(prompts=1, samples=1)
            groups = step.take()
            for op in ops:
                groups = op(groups)
            for mb in step.micro_batches(step.pack(step.advantages(step.reward(groups)))):
                step.fwd_bwd(mb)
            step.update()
            step.sync_weights()
            step.commit()

        return mine.trace()

    error = failure("ST118", lambda: step_with(a, b))
    assert [note.loc for note in error.notes] == [a.kind.loc, b.kind.loc]
    (row_a,) = step_with(a, a).kinds
    (row_b,) = step_with(b).kinds
    assert implementation(row_a) is a.function
    assert implementation(row_b) is b.function
    assert implementation("same") is b.function


def test_a_row_that_lost_its_place_still_finds_its_function():
    from dataclasses import replace

    @steptrace.op(takes=("groups",), gives="groups")
    def found_again(groups):
        """Doc."""

    row = found_again.kind
    assert implementation(replace(row, loc=None, doc="")) is found_again.function
    assert implementation(replace(row, reads=("host",))) is None, "another row is another op"
    assert implementation("never defined") is None


def test_ops_made_by_one_def_keep_their_functions_apart():
    def make(share):
        @steptrace.op(takes=("groups",), gives="groups", name="shared")
        def op(groups):
            return share

        return op

    first, second = make(1), make(2)
    assert first.kind == second.kind
    assert implementation(first.kind)(None) == 1
    assert implementation(second.kind)(None) == 2
    assert implementation("shared")(None) == 2


# Resources


def test_declared_resources():
    assert steptrace.resource("shelf", kind="slot", capacity=2) == Resource("shelf", ResourceKind.SLOT, 2)
    assert steptrace.resource("shelf", kind="slot", capacity=2) == Resource("shelf", ResourceKind.SLOT, 2)
    failure("ST119", lambda: steptrace.resource("shelf"))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("params", {}),
        ("two words", {}),
        ("1st", {}),
        ("", {}),
        ("new", {"kind": "stack"}),
        ("new", {"kind": "slot"}),
        ("new", {"kind": "slot", "capacity": -1}),
        ("new", {"capacity": 2}),
    ],
)
def test_resources_that_cannot_be_declared(name, options):
    failure("ST119", lambda: steptrace.resource(name, **options))
