"""Cost files: what they say in seconds, and each mistake with its line."""

from __future__ import annotations

import pytest

from steptrace.cost import parse_costs, quantity, read_costs, seconds_in_words
from steptrace.diag.base import SteptraceError
from steptrace.lang.reference import resolve
from steptrace.simulate import Cost

TEXT = """\
[links.wire]
bandwidth = "10 GB/s"
latency = "1 ms"

[ops.fwd_bwd]
issue = "2 ms"
work = "3 s"
bytes = "50 MB"
link = "wire"

[ops."log"]
issue = "0 s"

[sizes]
params = "4 GiB"

[cell]
micro_batches = 9
"""


def test_a_file_in_seconds_and_bytes():
    costs = parse_costs(TEXT)
    assert dict(costs.ops) == {"fwd_bwd": Cost(0.002, 3.0, 0.001 + 0.005), "log": Cost()}
    assert dict(costs.sizes) == {"params": 4 * 2**30}
    assert costs.micro_batches == 9


@pytest.mark.parametrize(
    ("text", "dimension", "number"),
    [
        ("12 ms", "time", 0.012),
        ("1.5us", "time", 1.5e-6),
        ("2 min", "time", 120.0),
        ("1e3 s", "time", 1000.0),
        ("50 MB", "size", 5e7),
        ("1 KiB", "size", 1024.0),
        ("10 GB/s", "bandwidth", 1e10),
    ],
)
def test_units(text: str, dimension, number: float):
    assert quantity(text, dimension) == pytest.approx(number, rel=1e-15)


@pytest.mark.parametrize(
    ("text", "dimension"),
    [(12, "time"), ("12", "time"), ("12 MB", "time"), ("-1 s", "time"), ("0 B/s", "bandwidth"), ("1e999 s", "time")],
)
def test_control_what_is_no_quantity_is_refused(text: object, dimension):
    with pytest.raises(ValueError, match=r"no unit|one is written|not a"):
        quantity(text, dimension)


@pytest.mark.parametrize(
    ("old", "new", "code", "line"),
    [
        ('"3 s"', "3", "ST331", 7),
        ('"50 MB"', '"50 ms"', "ST331", 8),
        ('link = "wire"', 'link = "road"', "ST330", 9),
        ("work =", "wrok =", "ST330", 7),
        ("work =", "work", "ST330", 7),
        ('bandwidth = "10 GB/s"\n', "", "ST330", 1),
        ("micro_batches = 9", "micro_batches = 0", "ST331", 18),
        ("[sizes]", "[weights]", "ST330", 14),
        ('issue = "0 s"', "", "ST330", 11),
    ],
)
def test_each_mistake_is_told_with_its_line(old: str, new: str, code: str, line: int):
    assert old in TEXT
    with pytest.raises(SteptraceError) as caught:
        parse_costs(TEXT.replace(old, new), "costs.toml")
    assert caught.value.loc is not None
    assert (caught.value.code, caught.value.loc.line) == (code, line)


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(SteptraceError) as caught:
        read_costs(tmp_path / "none.toml")
    assert caught.value.code == "ST330"


def test_ops_without_costs_are_listed_and_not_zero():
    costs, source = parse_costs(TEXT), resolve("grpo")
    missing = costs.unknown(source)
    assert "pack" in missing
    assert "update" in missing
    assert "fwd_bwd" not in missing
    with pytest.raises(SteptraceError) as caught:
        costs.covering(source)
    assert caught.value.code == "ST332"
    assert all(f"`{name}`" in caught.value.message for name in missing)
    assert caught.value.help.startswith("measure it: a run with `--profile FILE --timed` (`timed=True`)")
    before, _, rest = caught.value.help.partition("; the others")
    assert '[ops.update] with work = "N ms"' in before
    assert '"0 s"' not in before
    assert rest.endswith('[ops.other] with issue = "0 s"')


def test_training_without_a_cost_is_not_offered_for_free():
    source = resolve("grpo")
    text = "".join(f'[ops.{op.kind}]\nissue = "1 ms"\n' for op in {op.kind: op for op in source.ops()}.values())
    text = text.replace("[ops.fwd_bwd]", "[ops.a]").replace("[ops.update]", "[ops.b]")
    with pytest.raises(SteptraceError) as caught:
        parse_costs(text).covering(source)
    assert caught.value.help.endswith('[ops.fwd_bwd] with work = "N ms", [ops.update] with work = "N ms"')
    with pytest.raises(SteptraceError) as caught:
        parse_costs(
            text.replace("[ops.a]", "[ops.fwd_bwd]").replace("[ops.b]", "[ops.update]").replace("[ops.log]", "[ops.c]")
        ).covering(source)
    assert caught.value.help.endswith('[ops.other] with issue = "0 s"')


def test_control_a_cost_for_all_others_covers_them():
    costs = parse_costs(TEXT + '[ops.other]\nissue = "1 ms"\n')
    assert costs.unknown(resolve("grpo")) == ()
    assert costs.covering(resolve("grpo")).kind("pack") == Cost(0.001)


def test_seconds_in_words():
    assert [seconds_in_words(one) for one in (98.58, 0.012, 0.0, 3e-6)] == ["98.58 s", "12 ms", "0 s", "3 us"]


def test_the_first_micro_batch_may_have_a_cost_of_its_own():
    text = '[ops.fwd_bwd]\nissue = "1 s"\nwork = "2 s"\n[ops.fwd_bwd.first]\nissue = "5 s"\nwork = "3 s"\n'
    durations = parse_costs(text).durations()
    op = next(op for op in resolve("grpo").ops() if op.kind == "fwd_bwd")
    assert durations.of(op, 0, 0) == Cost(5.0, 3.0)
    assert durations.of(op, 0, 1) == Cost(1.0, 2.0)
    assert durations.kind("fwd_bwd_staged") == Cost(work_s=2.0)


@pytest.mark.parametrize("text", ['[ops.a]\nwork = "1 s"\n[ops.a.first]\n', '[ops.a.first]\nwork = "1 s"\n'])
def test_a_first_micro_batch_needs_a_cost_beside_that_of_the_others(text: str):
    with pytest.raises(SteptraceError, match="has no cost"):
        parse_costs(text)


OTHERS = '[ops.other]\nissue = "0 s"\n'


@pytest.mark.parametrize(("name", "meant"), [("fwd_bkd", "fwd_bwd"), ("sync_weight", "sync_weights")])
def test_a_misspelt_op_does_not_cost_what_all_others_do(name: str, meant: str):
    source = resolve("grpo")
    with pytest.raises(SteptraceError) as caught:
        parse_costs(f'[ops.{name}]\nwork = "3 s"\n{OTHERS}').covering(source)
    assert caught.value.code == "ST332"
    assert f"a cost for `{name}`, which is no op of `grpo`, and none for `{meant}`" in caught.value.message
    assert caught.value.loc == next(op.loc for op in source.ops() if op.id == meant)


@pytest.mark.parametrize("name", ["stage_fwd_bwd", '"fwd_bwd.first.early"', "rescore_by_hand", "fwd_bwd"])
def test_control_costs_of_other_ops_are_let_be(name: str):
    """Those of the parts that passes make, and of ops that another program has."""
    parse_costs(f'[ops.{name}]\nwork = "3 s"\n{OTHERS}').covering(resolve("grpo"))
