"""The judge: hand-made schedules whose answer is known, and its reasoning against all orders, one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from steptrace.diag import Loc, SteptraceError
from steptrace.ir import (
    Every,
    Flag,
    Given,
    Loop,
    Not,
    Op,
    Operand,
    OpKind,
    Program,
    Resource,
    ResourceKind,
    Result,
    Type,
    Use,
)
from steptrace.testing.interpreter import Terms, interpret, source_events
from steptrace.testing.judge import EQUAL, Verdict, bound_of, judge, judge_run, phases_of
from steptrace.testing.overlap import Order, Wait, lanes_of, order_of, waiting_of
from steptrace.testing.random_programs import STRATA, random_program
from steptrace.testing.random_schedules import moves_of
from steptrace.testing.runs import Source, source_of
from steptrace.testing.soundness import every_wait
from steptrace.testing.unrolled import sheet_of

KINDS = {"s": "state", "t": "state", "c": "cell", "two": "cell", "q": "fifo", "out": "channel"}
RESOURCES = tuple(Resource(name, ResourceKind(kind), 2 if name == "two" else 0) for name, kind in KINDS.items())


def op(text: str, **fields: object) -> tuple[Op, OpKind]:
    """``name reads a b writes c awaits d takes x gives y on device``, with the fields of the op."""
    words: dict[str, list[str]] = {}
    name, *rest = text.split()
    for word in rest:
        if word in ("reads", "writes", "awaits", "takes", "gives", "flags", "on"):
            words[word] = last = []
        else:
            last.append(word)
    device = "".join(words.get("on", []))
    uses = tuple(_use(word) for word in words.get("takes", []))
    gives = [(value, "value") for value in words.get("gives", [])] + [(f, "flag") for f in words.get("flags", [])]
    kind = OpKind(
        name,
        tuple(Operand(f"x{at}", None) for at in range(len(uses))),
        tuple(Given(value, base) for value, base in gives),
        reads=tuple(words.get("reads", [])),
        writes=tuple(words.get("writes", [])),
        awaits=tuple(words.get("awaits", [])),
        device=device,
        blocking=not device,
        user=True,
    )
    made = Op(name, name, uses, tuple(Result(value, Type(base)) for value, base in gives))
    return replace(made, **fields), kind


def _use(word: str) -> Use:
    name, _, back = word.partition("@")
    return Use(name, -1) if back == "k-1" else Use(name, 0, -1) if back == "m-1" else Use(name)


def program(*parts: tuple[Op, OpKind] | list[tuple[Op, OpKind]]) -> Program:
    """A program of ops; a list is a loop over micro-batches."""
    body: list[Op | Loop] = []
    kinds: list[OpKind] = []
    for part in parts:
        if isinstance(part, list):
            body.append(Loop("loop", "micro_batches", "m", None, None, tuple(inner for inner, _ in part)))
            kinds += [kind for _, kind in part]
        else:
            body.append(part[0])
            kinds.append(part[1])
    return Program("by_hand", resources=RESOURCES, kinds=tuple(kinds), body=tuple(body))


def scheduled(source: Program, text: str) -> Program:
    """``b a+1 c:io``: the ops in this order, a one step ahead, c on lane io; a loop stays as it is."""
    nodes = {node.id: node for node in source.body}
    body = []
    for word in text.split():
        name, _, lane = word.partition(":")
        name, _, ahead = name.partition("+")
        node = nodes[name]
        body.append(replace(node, shift=int(ahead or 0), lane=lane or "host") if isinstance(node, Op) else node)
    return replace(source, body=tuple(body))


def verdict(source: Program, text: str, *waits: Wait) -> Verdict:
    return judge(source_of(source), scheduled(source, text), waits)


PAIR = program(op("a reads s writes s out"), op("b reads t writes t"), op("c reads s writes s"))


def test_independent_ops_may_stand_in_any_order():
    assert verdict(PAIR, "b a c") == EQUAL


def test_control_dependent_ops_may_not():
    assert verdict(PAIR, "c a b").reason == "c@0 may run before a@0"


def test_a_rotated_op_is_equal_and_one_too_far_ahead_is_not():
    assert verdict(PAIR, "b c a+1").equal
    assert verdict(PAIR, "b a+1 c").reason == "a@1 may run before c@0"


def test_a_lane_without_waits_is_different_and_the_witness_shows_it():
    source = source_of(PAIR)
    found = judge(source, scheduled(PAIR, "a b c:io"), ())
    assert found.reason == "c@0 may run before a@0"
    run = source.run(found.counts)
    terms = Terms()
    assert found.facts is not None
    plain = interpret(run, found.facts, source_events(run), terms)
    assert interpret(run, found.facts, found.witness, terms) != plain


ROUND = (Wait("a", "c", 0), Wait("c", "a", 1))


def test_two_lanes_need_both_waits():
    assert verdict(PAIR, "a b c:io", *ROUND).equal
    assert verdict(PAIR, "a b c:io", ROUND[0]).reason == "a@1 may run before c@0"
    assert verdict(PAIR, "a b c:io", ROUND[1]).reason == "c@0 may run before a@0"


def test_lanes_that_wait_for_each_other_are_different():
    assert verdict(PAIR, "a b c:io", Wait("c", "a", 0), ROUND[0]).reason.startswith("its lanes wait for ever")


def test_a_write_that_nothing_reads_may_be_lost():
    dead = program(op("a writes s"), op("b writes s"), op("r reads s writes out"))
    assert verdict(dead, "b+1 a+1 r").reason == "r@0 may find `s` as a@0 leaves it"
    unread = program(op("a writes s out"), op("b writes s"), op("r reads t writes t"))
    assert verdict(unread, "b a r").equal


def test_what_stands_in_a_state_at_the_end_is_seen_if_some_op_reads_it():
    source = program(op("r reads s writes out"), op("a writes s"), op("b writes s"))
    assert verdict(source, "r b a").reason == "r@1 may find `s` as a@0 leaves it"
    found = judge(source_of(source), scheduled(source, "r b a"), (), [((1,), 0)])
    assert found.reason == "the end may find `s` as a@0 leaves it"


def test_cells_of_different_steps_do_not_touch():
    source = program(op("w writes c[k]"), op("r reads c[k-1] writes out"))
    assert verdict(source, "r w").equal
    assert not verdict(source, "r+1 w").equal


def test_a_read_needs_the_call_and_an_await_needs_the_work():
    source = program(op("w reads s writes s on trainer"), op("r reads s writes out"))
    assert verdict(source, "w r").equal
    source = program(op("w reads s writes s on trainer"), op("r awaits s writes out"))
    assert verdict(source, "w r").reason == "r@0 may run before w@0 is done"
    assert verdict(source, "w r", Wait("w", "r", 0)).reason == "r@0 may run before w@0 is done"
    assert verdict(source, "w r", Wait("w", "r", 0, done=True)).equal


def test_a_device_finishes_in_the_order_of_issue():
    source = program(
        op("v reads s writes s on trainer"), op("w reads t writes t on trainer"), op("r awaits s writes out")
    )
    assert verdict(source, "v w r", Wait("w", "r", 0, done=True)).equal
    other = replace(source, kinds=tuple(replace(k, device="link") if k.name == "w" else k for k in source.kinds))
    assert verdict(other, "v w r", Wait("w", "r", 0, done=True)).reason == "r@0 may run before v@0 is done"


def test_a_queue_hands_out_what_was_put_in_first():
    source = program(op("put reads s writes q"), op("get reads q writes q out"), op("next reads s writes s"))
    assert verdict(source, "put next get").equal
    assert verdict(source, "next get put+1").equal
    assert verdict(source, "get put next").reason == "get@0 may run before put@0"


def test_a_queue_that_is_emptied_in_other_portions_takes_what_was_there():
    source = program(op("put reads s writes q s"), [op("get reads q writes q out")])
    assert verdict(source, "loop put+1").equal
    assert not verdict(source, "put:io loop", Wait("get", "put", 1)).equal


def test_a_capacity_holds_whatever_the_timing():
    source = program(op("w writes two[k]"), op("r reads two[k] writes out"), op("f writes two[k]"))
    ahead = (Wait("w", "r", 0), Wait("f", "w", 2))
    assert verdict(source, "w+1:io r f", *ahead).equal
    assert verdict(source, "w+1:io r f", ahead[0]).reason.startswith("more than 2 entries may be in use")


def test_an_op_that_is_dropped_doubled_or_behind_is_different():
    assert verdict(PAIR, "a b").reason == "c@0 never runs"
    assert verdict(PAIR, "a a b c").reason == "a@0 runs twice"
    behind = scheduled(PAIR, "a b c")
    behind = replace(behind, body=(behind.body[0], behind.body[1], replace(behind.body[2], shift=-1)))
    assert judge(source_of(PAIR), behind, ()).reason.endswith("never runs")


def test_where_the_row_of_an_op_was_written_is_no_difference():
    plain = program(op("a reads s writes s"), op("b reads s writes t"))
    (first, *rest) = plain.kinds
    moved = replace(plain, kinds=(replace(first, loc=Loc("elsewhere.py", 3), doc="Another page."), *rest))
    assert judge(source_of(plain), moved, ()) == EQUAL
    other = replace(plain, kinds=(replace(first, may_fail=not first.may_fail), *rest))
    assert not judge(source_of(plain), other, ()).equal


def test_an_operand_of_another_step_is_different():
    source = program(op("a reads s writes s gives v"), op("b takes v writes out"))
    wrong = replace(source.body[1], args=(Use("v", -1),))
    found = judge(source_of(source), replace(source, body=(source.body[0], wrong)), ())
    assert found.reason == "b@0 is not what it is in the source"


def test_a_condition_waits_for_its_flag_and_its_op_does_nothing_when_it_is_false():
    source = program(
        op("look reads s writes s flags f"),
        op("then reads t writes t out", when=Flag("f")),
        op("else reads t writes t out", when=Not(Flag("f"))),
    )
    assert verdict(source, "look else then").equal
    assert verdict(source, "then look else").reason == "then@0 may run before look@0"


def test_a_condition_every_n_is_looked_at_where_it_is_true():
    source = program(op("a reads s writes s"), op("save reads s writes out", when=Every(7)))
    assert verdict(source, "save a").reason.startswith("save@")
    assert 6 in {(phase + 1) % 7 for phase in phases_of(source_of(source), 2)}


def test_micro_batches_of_unequal_steps():
    source = program(
        op("begin reads s writes s"),
        [op("m reads s gives x"), op("n takes x reads t writes t")],
        op("end reads t writes out"),
    )
    ahead = replace(source.body[1].body[0], shift=1)
    loop = replace(source.body[1], body=(source.body[1].body[1], ahead))
    assert judge(source_of(source), replace(source, body=(source.body[0], loop, source.body[2])), ()).equal
    wrong = replace(source.body[1], body=source.body[1].body[::-1])
    found = judge(source_of(source), replace(source, body=(source.body[0], wrong, source.body[2])), ())
    assert found.reason == "n@(0, 0) may run before m@(0, 0)"


def test_a_wait_goes_past_a_loop_that_does_not_run():
    source = program(op("a reads s writes s"), [op("m reads s writes s")], op("b reads s writes out"))
    lanes = "a loop b:io"
    waits = (Wait("m", "b", 0), Wait("b", "a", 1))
    assert verdict(source, lanes, *waits).equal
    found = judge(source_of(source), scheduled(source, lanes), waits[:1], [((0, 0), 0)])
    assert found.reason == "b@0 may find `s` as a@1 leaves it"


def orders(order: Order, most: int) -> Iterator[tuple[int, ...]]:
    """The orders of events that are possible, one by one, up to so many."""
    found = 0

    def visit(done: int, so_far: list[int]) -> Iterator[tuple[int, ...]]:
        nonlocal found
        if len(so_far) == len(order.sequence):
            found += 1
            yield tuple(so_far)
            return
        for event in order.sequence:
            if found < most and not done >> event & 1 and not order.past[event] & ~done:
                yield from visit(done | 1 << event, [*so_far, event])

    yield from visit(0, [])


def random_pairs(seed: int, programs: int) -> Iterator[tuple[Source, Program, tuple[Wait, ...], Random]]:
    """Random schedules with the waits that their edges ask for, or all but one of them."""
    for number in range(programs):
        rng = Random(f"{seed}/{number}")
        stratum = STRATA[number % len(STRATA)]
        reference = random_program(rng, stratum)
        source, current = source_of(reference), reference
        for _ in range(12):
            candidate = rng.choice(moves_of(stratum))(rng, current)
            try:
                waits = list(every_wait(candidate, reference))
            except SteptraceError:
                continue
            if waits and rng.random() < 0.4:
                waits.pop(rng.randrange(len(waits)))
            if judge(source, candidate, waits).equal:
                current = candidate
            yield source, candidate, tuple(waits), rng


def compared(programs: int, most: int) -> tuple[int, int]:
    """Holds the judge against the interpreter on random pairs; how many were equal and how many different."""
    equal = different = 0
    for source, schedule, waits, rng in random_pairs(5, programs):
        counts = rng.choice(((1, 1, 1), (2, 1), (1, 2), (0, 2), (1, 1), (2, 0, 1)))
        run = source.run(counts, rng.choice(phases_of(source, len(counts))))
        sheet = sheet_of(schedule)
        found = judge_run(run, sheet, waits)
        lanes = lanes_of(sheet, run)
        order = order_of(lanes.orders, waiting_of(waits, lanes, run), run.devices)
        terms = Terms()
        if order.stuck:
            assert not found.equal
        elif found.equal:
            equal += 1
            for facts in run.facts:
                plain = interpret(run, facts, source_events(run), terms)
                for events in orders(order, most):
                    assert interpret(run, facts, events, terms) == plain
        else:
            different += 1
            assert sorted(found.witness) == sorted(order.sequence)
            assert found.facts is not None
            plain = interpret(run, found.facts, source_events(run), terms)
            assert interpret(run, found.facts, found.witness, terms) != plain
    return equal, different


def test_its_answers_are_those_of_all_orders_one_by_one():
    equal, different = compared(programs=18, most=12)
    assert min(equal, different) > 20


@pytest.mark.slow
def test_its_answers_are_those_of_all_orders_one_by_one_on_many_programs():
    equal, different = compared(programs=240, most=60)
    assert min(equal, different) > 300


def test_control_the_interpreter_tells_two_orders_of_writes_apart():
    source = source_of(PAIR)
    run = source.run((1,))
    terms = Terms()
    plain = interpret(run, run.facts[0], source_events(run), terms)
    assert interpret(run, run.facts[0], (2, 0, 1), terms) != plain
    assert interpret(run, run.facts[0], (1, 0, 2), terms) == plain


def test_the_bound_counts_lanes_and_devices():
    source = program(op("a reads s writes s on trainer"), op("b reads t writes t"), op("c reads c[k-2] writes c[k]"))
    assert bound_of(source_of(source), sheet_of(scheduled(source, "a b c")), ()) == 4
    assert bound_of(source_of(source), sheet_of(scheduled(source, "a b+1:io c:packer")), ()) == 6
