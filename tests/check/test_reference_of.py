"""The reference of a schedule, recovered from the schedule alone; and schedules of other ops are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from steptrace.check import apply_law, edges_of, peel_first, reference_of, shortest_chain
from steptrace.diag.schedule import (
    ChangedOpError,
    DeclarationChangedError,
    DoubledOpError,
    ForeignOpError,
    MissingOpError,
    UnknownOpError,
    UnorderedError,
)
from steptrace.ir import Op, Origin, Program, parse_program, print_program
from steptrace.lang.reference import resolve
from tests.check.boundary import moved, pipelined, reference, source, without

PLAIN = source()


def test_a_program_is_its_own_reference() -> None:
    assert reference_of(PLAIN, PLAIN) == PLAIN


def test_the_reference_is_found_from_the_text_of_the_schedule() -> None:
    schedule = parse_program(print_program(pipelined(PLAIN)))
    assert edges_of(reference_of(schedule, PLAIN)) == edges_of(reference(PLAIN))
    assert reference_of(schedule, PLAIN) == reference(PLAIN)


@pytest.mark.parametrize(
    "laws",
    [
        [("update", "fused-update")],
        [("update", "deferred-update"), ("save_checkpoint", "snapshot-write")],
        [("sync_weights", "copy-transfer-apply"), ("get_metrics", "start-fetch")],
    ],
)
@pytest.mark.parametrize("peeled", [False, True])
def test_every_law_is_recognised(laws: list[tuple[str, str]], peeled: bool) -> None:
    program = peel_first(PLAIN, "micro_batches") if peeled else PLAIN
    for op, law in laws:
        program = apply_law(program, op, law)
    assert reference_of(program, PLAIN) == program


def test_names_of_the_schedule_are_its_own() -> None:
    def other(text: str) -> str:
        return text.replace("%request", "%sent").replace("fwd_bwd_staged.first:", "sent_call:")

    schedule = parse_program(other(print_program(pipelined(PLAIN))))
    found = reference_of(schedule, PLAIN)
    assert "sent_call" in [op.id for op in found.ops()]


def refused(program: Program, kind: type[Exception], plain: Program = PLAIN) -> str:
    with pytest.raises(kind) as raised:
        reference_of(program, plain)
    return str(raised.value)


def test_an_op_less() -> None:
    assert "`update` does not run in the schedule" in refused(without(PLAIN, "update"), MissingOpError)


def test_a_part_less() -> None:
    text = refused(without(pipelined(PLAIN), "fwd_bwd.first"), MissingOpError)
    assert "part `whole` of `fwd_bwd`" in text
    refused(without(pipelined(PLAIN), "fetch_metrics"), MissingOpError)
    refused(without(pipelined(PLAIN), "apply_deferred_update"), MissingOpError)


def test_an_update_twice() -> None:
    again = Op("update.2", "update", origin=Origin("update"))
    assert "a second time" in refused(replace(PLAIN, body=(*PLAIN.body, again)), DoubledOpError)


def test_a_held_update_and_a_plain_one() -> None:
    schedule = pipelined(PLAIN)
    again = Op("update", "update")
    refused(replace(schedule, body=(*schedule.body, again)), DoubledOpError)


def test_an_op_of_nobody() -> None:
    text = refused(replace(PLAIN, body=(*PLAIN.body, Op("sync_2", "sync_weights"))), ForeignOpError)
    assert "`sync_2` stands for `sync_2`" in text


@pytest.mark.parametrize(
    ("op", "change"),
    [
        ("dispatch", {"attrs": (("prompts", 64), ("samples", 8))}),
        ("save_checkpoint", {"when": PLAIN.body[0].when}),
        ("reward", {"kind": "advantages"}),
    ],
)
def test_a_changed_op(op: str, change: dict[str, object]) -> None:
    refused(moved(PLAIN, op, **change), ChangedOpError)


def test_another_contract_is_another_program() -> None:
    refused(source(staleness=0), DeclarationChangedError)


def test_a_loop_over_epochs_keeps_its_inside() -> None:
    plain = resolve("grpo_epochs")
    loop = next(node for node in plain.body if node.id == "repeat")
    inner = replace(loop.body[0], body=loop.body[0].body[::-1])
    changed = replace(plain, body=tuple(replace(n, body=(inner,)) if n is loop else n for n in plain.body))
    refused(changed, ChangedOpError, plain)


def test_why_shows_the_shortest_chain() -> None:
    chain = shortest_chain(PLAIN, "fwd_bwd", "sync_weights")
    assert [(edge.before, edge.after) for edge in chain] == [("fwd_bwd", "update"), ("update", "sync_weights")]
    assert sum(edge.distance for edge in chain) == 0
    chain = shortest_chain(PLAIN, "sync_weights", "dispatch")
    assert [edge.distance for edge in chain] == [2]
    chain = shortest_chain(PLAIN, "update", "update")
    assert sum(edge.distance for edge in chain) == 1


def test_why_says_when_nothing_orders_two_ops() -> None:
    with pytest.raises(UnorderedError):
        shortest_chain(PLAIN, "log", "update")
    with pytest.raises(UnknownOpError) as raised:
        shortest_chain(PLAIN, "updat", "log")
    assert raised.value.help == "did you mean `update`?"
