"""What a compiled program executes, counted in hand-written programs whose counts are plain to see."""

import pytest

from steptrace_kernels.hlo_count import group_size
from steptrace_kernels.hlo_report import hlo_report
from steptrace_kernels.hlo_text import Shape, parse

ADD = """
%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}
"""


def module(entry, *computations, devices=8):
    """A module whose entry computation takes ``x`` [6, 10] and has these lines."""
    lines = "\n  ".join(["%x = f32[6,10]{1,0} parameter(0)", *entry])
    head = f"HloModule m, is_scheduled=true, num_partitions={devices}\n"
    return head + ADD + "\n".join(computations) + f"\nENTRY %main (x: f32[6,10]) -> f32[6,10] {{\n  {lines}\n}}\n"


def loop(name, body, *, bound=None, step=1, direction="LT"):
    """A loop over (counter, [6, 10]) that ends at ``bound``, with these lines in its body, the last called ``y``."""
    lines = "\n  ".join(body)
    limit = f"constant({bound})" if bound is not None else "get-tuple-element(%s), index=2"
    return f"""
%{name}_body (s: (s32[], f32[6,10], s32[])) -> (s32[], f32[6,10], s32[]) {{
  %s = (s32[], f32[6,10]{{1,0}}, s32[]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %x = f32[6,10]{{1,0}} get-tuple-element(%s), index=1
  %n = s32[] get-tuple-element(%s), index=2
  {lines}
  %one = s32[] constant({step})
  %next = s32[] add(%i, %one)
  ROOT %out = (s32[], f32[6,10]{{1,0}}, s32[]) tuple(%next, %y, %n)
}}

%{name}_condition (s: (s32[], f32[6,10], s32[])) -> pred[] {{
  %s = (s32[], f32[6,10]{{1,0}}, s32[]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %limit = s32[] {limit}
  ROOT %less = pred[] compare(%i, %limit), direction={direction}
}}
"""


def run(name, state="%x", *, start=0, note=""):
    """Lines that run the loop ``name``, and take its array as ``{name}_x``."""
    return [
        f"%{name}_start = s32[] constant({start})",
        f"%{name}_state = (s32[], f32[6,10]{{1,0}}, s32[]) tuple(%{name}_start, {state}, %{name}_start)",
        f"%{name} = (s32[], f32[6,10]{{1,0}}, s32[]) while(%{name}_state), condition=%{name}_condition, "
        f"body=%{name}_body{note}",
        f"%{name}_x = f32[6,10]{{1,0}} get-tuple-element(%{name}), index=1",
    ]


REDUCE = "%y = f32[6,10]{1,0} all-reduce(%x), replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add"
NOTE = ', backend_config={"known_trip_count":{"n":"%d"},"known_init_step":{"init":"0","step":"1"}}'


@pytest.mark.parametrize(
    ("line", "kind", "sent"),
    [
        ("f32[24,10]{1,0} all-gather(%x), replica_groups={{0,1,2,3},{4,5,6,7}}", "all-gather", 960 * 3 / 4),
        ("f32[3,10]{1,0} reduce-scatter(%x), replica_groups={{0,1},{2,3}}, to_apply=%add", "reduce-scatter", 240 / 2),
        ("f32[6,10]{1,0} all-reduce(%x), replica_groups={{0,1,2,3,4}}, to_apply=%add", "all-reduce", 480 * 4 / 5),
        ("f32[6,10]{1,0} all-to-all(%x), replica_groups={{0,1,2}}, dimensions={0}", "all-to-all", 240 * 2 / 3),
        ("f32[6,10]{1,0} collective-permute(%x), source_target_pairs={{0,1}}", "collective-permute", 240),
    ],
)
def test_bytes_of_each_kind(line, kind, sent):
    found = hlo_report(module([f"ROOT %y = {line}"]))
    assert found.count(kind) == found.count() == 1
    assert found.bytes == pytest.approx(sent)
    assert found.exact


def test_an_exchange_of_tuples_moves_all_that_goes_in():
    line = "ROOT %y = (f32[6,10]{1,0}, f32[6,10]{1,0}) all-to-all(%x, %x), replica_groups={{0,1},{2,3}}"
    assert hlo_report(module([line])).bytes == 2 * 240 / 2


@pytest.mark.parametrize(
    ("groups", "size"),
    [
        ("replica_groups={{0,2},{1,3}}", 2),
        ("replica_groups={}", 8),
        ("", 8),
        ("replica_groups=[2,4]<=[8]", 4),
        ("replica_groups=[4,2]<=[2,2,2]T(0,2,1), dimensions={0}", 2),
        ("replica_groups=mesh['axis_0'=1,'axis_1'=8] {'axis_1'}, dimensions={1}", 8),
        (
            "replica_groups=mesh['a'=4,'b'=2,'c'=1], device_ids=([2,2,2]T(0,2,1)) {'a','b'}, to_apply=%add",
            8,
        ),
        ("replica_groups=mesh['a'=8] {'a':(2)4}", 4),
    ],
)
def test_group_sizes_in_each_form(groups, size):
    assert group_size(f", channel_id=1, {groups}", 8) == size


def test_nested_loops_multiply():
    inner = loop("inner", [REDUCE])
    outer = loop("outer", [*run("inner", note=NOTE % 5), "%y = f32[6,10]{1,0} copy(%inner_x)"])
    found = hlo_report(module([*run("outer", note=NOTE % 3), "ROOT %z = f32[6,10]{1,0} copy(%outer_x)"], inner, outer))
    assert found.count("all-reduce") == 15
    assert found.bytes == 15 * 480 * 3 / 4


@pytest.mark.parametrize(
    ("start", "bound", "step", "direction", "turns"),
    [(0, 7, 1, "LT", 7), (2, 7, 1, "LT", 5), (0, 7, 2, "LT", 4), (1, 7, 1, "LE", 7), (9, 7, 1, "LT", 0)],
)
def test_trip_counts_where_the_compiler_notes_none(start, bound, step, direction, turns):
    body = loop("l", [REDUCE], bound=bound, step=step, direction=direction)
    found = hlo_report(module([*run("l", start=start), "ROOT %z = f32[6,10]{1,0} copy(%l_x)"], body))
    assert found.exact
    assert found.count("all-reduce") == turns


def test_trip_counts_through_fusions_and_copies():
    fused = """
%compared (p: s32[], q: s32[]) -> pred[] {
  %q = s32[] parameter(1)
  %p = s32[] parameter(0)
  ROOT %less = pred[] compare(%p, %q), direction=LT
}
"""
    body = loop("l", [REDUCE], bound=4).replace(
        "compare(%i, %limit), direction=LT", "fusion(%i, %limit), kind=kLoop, calls=%compared"
    )
    lines = [line.replace("tuple(%l_start,", "tuple(%l_copied,") for line in run("l", start=1)]
    lines.insert(1, "%l_copied = s32[] copy(%l_start)")
    found = hlo_report(module([*lines, "ROOT %z = f32[6,10]{1,0} copy(%l_x)"], fused, body))
    assert found.count("all-reduce") == 3


def test_a_trip_count_that_is_not_told_is_reported_and_not_counted_as_one():
    entry = [*run("l"), REDUCE.replace("%y", "ROOT %z").replace("(%x)", "(%l_x)")]
    text = module(entry, loop("l", [REDUCE]))
    found = hlo_report(text)
    assert found.unknown_loops == ("l",)
    assert not found.exact
    assert found.count("all-reduce") == 1
    assert [one.times for one in found.collectives] == [None, 1]
    assert "trip count not known, and not counted: l" in str(found)
    assert "at least" in str(found)
    assumed = hlo_report(text, unknown_trips=6)
    assert assumed.count("all-reduce") == 7
    assert not assumed.exact


def test_control_the_note_of_the_compiler_makes_it_known():
    text = module([*run("l", note=NOTE % 6), "ROOT %z = f32[6,10]{1,0} copy(%l_x)"], loop("l", [REDUCE]))
    assert hlo_report(text).count("all-reduce") == 6
    assert "at least" not in str(hlo_report(text))


MATMUL = "%m = f32[6,6]{1,0} dot(%x, %x), lhs_contracting_dims={1}, rhs_contracting_dims={1}"
START = "%s = (f32[6,10]{1,0}, f32[24,10]{1,0}) all-gather-start(%x), replica_groups={{0,1,2,3}}, dimensions={0}"
DONE = "%y = f32[24,10]{1,0} all-gather-done(%s)"


def test_start_and_done_are_one_collective():
    found = hlo_report(module([START, DONE.replace("%y", "ROOT %y")]))
    assert found.count("all-gather") == found.count() == 1
    assert found.bytes == 240 * 3
    assert found.covered() == 0


def test_what_is_computed_between_start_and_done_covers_it():
    between = hlo_report(module([START, MATMUL, DONE.replace("%y", "ROOT %y")]))
    after = hlo_report(module([START, DONE, MATMUL.replace("%m", "ROOT %m")]))
    assert between.collectives[0].meanwhile == between.matmul_flops == after.matmul_flops == 2 * 6 * 6 * 10
    assert between.covered() == 1
    assert after.covered() == 0


def test_a_wrapped_asynchronous_collective_is_followed_once():
    wrapped = """
%wrapped (p: f32[6,10]) -> f32[3,10] {
  %p = f32[6,10]{1,0} parameter(0)
  ROOT %r = f32[3,10]{1,0} reduce-scatter(%p), replica_groups={{0,1},{2,3}}, dimensions={0}, to_apply=%add
}
"""
    start = "%s = ((f32[6,10]{1,0}), f32[3,10]{1,0}, u32[]) async-start(%x), calls=%wrapped"
    done = "ROOT %y = f32[3,10]{1,0} async-done(%s), calls=%wrapped"
    found = hlo_report(module([start, MATMUL, done], wrapped))
    assert found.count("reduce-scatter") == found.count() == 1
    assert found.covered() == 1


FUSED = """
%all-reduce-scatter (p: f32[6,10], at: s32[]) -> f32[3,10] {
  %p = f32[6,10]{1,0} parameter(0)
  %at = s32[] parameter(1)
  %zero = s32[] constant(0)
  %r = f32[6,10]{1,0} all-reduce(%p), replica_groups={{0,1},{2,3}}, to_apply=%add
  ROOT %part = f32[3,10]{1,0} dynamic-slice(%r, %at, %zero), dynamic_slice_sizes={3,10}
}
"""


def test_a_reduction_fused_with_the_part_that_is_kept_is_a_reduce_scatter():
    line = "ROOT %y = f32[3,10]{1,0} fusion(%x, %at), kind=kCustom, calls=%all-reduce-scatter"
    found = hlo_report(module(["%at = s32[] constant(0)", line], FUSED))
    assert found.count("reduce-scatter") == found.count() == 1
    assert found.bytes == 240 / 2


def test_control_a_reduction_that_is_then_sliced_moves_twice_that():
    slice_of = "ROOT %z = f32[3,10]{1,0} dynamic-slice(%y, %at, %at), dynamic_slice_sizes={3,10}"
    found = hlo_report(module(["%at = s32[] constant(0)", REDUCE, slice_of]))
    assert found.count("all-reduce") == 1
    assert found.bytes == 480 * 3 / 4


def test_of_a_conditional_the_branch_that_sends_most_is_counted():
    branches = [
        f"""
%{name} (p: f32[6,10]) -> f32[6,10] {{
  %x = f32[6,10]{{1,0}} parameter(0)
  {line.replace("%y", "ROOT %y")}
}}
"""
        for name, line in (("few", "%y = f32[6,10]{1,0} copy(%x)"), ("many", REDUCE))
    ]
    line = "ROOT %z = f32[6,10]{1,0} conditional(%n, %x, %x), branch_computations={%few, %many}"
    assert hlo_report(module(["%n = s32[] constant(0)", line], *branches)).count("all-reduce") == 1


def test_matmuls_are_dots_and_convolutions_in_fusions_too():
    fused = """
%f (p: f32[6,10], q: f32[10,4]) -> f32[6,4] {
  %p = f32[6,10]{1,0} parameter(0)
  %q = f32[10,4]{1,0} parameter(1)
  ROOT %c = f32[6,4]{1,0} convolution(%p, %q), dim_labels=bf_io->bf
}
"""
    lines = ["%w = f32[10,4]{1,0} constant({...})", MATMUL]
    lines.append("ROOT %y = f32[6,4]{1,0} fusion(%x, %w), kind=kOutput, calls=%f")
    assert hlo_report(module(lines, fused)).matmul_flops == 2 * 6 * 6 * 10 + 2 * 6 * 4 * 10


def test_buffers_are_what_is_made_the_largest_first():
    fused = """
%f (p: f32[6,10]) -> f32[6,10] {
  %p = f32[6,10]{1,0} parameter(0)
  %big = f32[100,6,10]{2,1,0} broadcast(%p), dimensions={1,2}
  ROOT %c = f32[6,10]{1,0} slice(%big), slice={[0:1], [0:6], [0:10]}
}
"""
    lines = ["%b = bf16[7,6,10]{2,1,0:T(8,128)(2,1)} broadcast(%x), dimensions={1,2}"]
    lines.append("ROOT %y = f32[6,10]{1,0} fusion(%x), kind=kLoop, calls=%f")
    found = hlo_report(module(lines, fused))
    assert found.largest == Shape("bf16", (7, 6, 10))
    assert found.largest.bytes == 840
    assert found.buffers == (Shape("bf16", (7, 6, 10)), Shape("f32", (6, 10)))


def test_the_table_is_told_by_what_sharding_cannot_divide_away():
    lines = ["%part = f32[28,10]{1,0} constant({...})", "%row = f32[4,10]{1,0} constant({...})"]
    lines.append("%g = f32[224,10]{1,0} all-gather(%part), replica_groups=[1,8]<=[8], dimensions={0}")
    lines.append("ROOT %h = f32[32,10]{1,0} all-gather(%row), replica_groups=[1,8]<=[8], dimensions={0}")
    found = hlo_report(module(lines), table=(224, 10))
    assert [one.table for one in found.collectives] == [True, False]
    assert found.count("all-gather", table=True) == 1
    assert found.bytes_of(table=True) == 28 * 10 * 4 * 7


def test_a_table_that_nothing_tells_apart_is_refused():
    with pytest.raises(ValueError, match="cannot be told from other arrays"):
        hlo_report(module(["ROOT %y = f32[6,10]{1,0} copy(%x)"]), table=(256, 64))


def test_a_kind_that_is_none_is_refused():
    with pytest.raises(ValueError, match="no kind of collective"):
        hlo_report(module(["ROOT %y = f32[6,10]{1,0} copy(%x)"])).count("all_gather")


def test_a_text_without_an_entry_is_refused():
    with pytest.raises(ValueError, match="no ENTRY computation"):
        hlo_report("module @jit_f { func.func public @main() }")


def test_operands_with_their_types_and_without_percent_signs():
    text = module(["ROOT %y = f32[24,10]{1,0} all-gather(f32[6,10]{1,0} %x), replica_groups={{0,1,2,3}}"])
    assert hlo_report(text).bytes == 720
    assert hlo_report(text.replace("%", "")).bytes == 720
    assert parse(text.replace("%", "")).entry.instructions["y"].operands == ("x",)


def test_a_call_out_of_the_program_is_named():
    line = 'ROOT %y = f32[6,10]{1,0} custom-call(%x), custom_call_target="matmul_elsewhere"'
    assert hlo_report(module([line])).opaque_calls == ("matmul_elsewhere",)
