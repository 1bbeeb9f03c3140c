"""The text and the nest view of a small program, letter by letter."""

from step_stages import STAGES, micro_batches, op, step

from steptrace.diag.loc import Loc
from steptrace.ir import (
    Attr,
    Contract,
    Every,
    Given,
    Operand,
    OpKind,
    Origin,
    Use,
    nest_view,
    parse_program,
    print_program,
)
from steptrace.testing.builder import Builder

TEXT = """\
steptrace 1
file 1 "train.py"
program grpo @1:2
contract weights=pinned staleness=1 partial=train empty=skip
before {
  initial_sync: %v0 : version = sync_weights() lane=host reads[params, trainer.step] \
writes[policy.version[k], rollout.weights[k], trainer.calls] awaits[params]
}
step k {
  dispatch() {prompts=4, samples=2} lane=host reads[prompts.cursor, rng, rollout.weights[k-2]] \
writes[prompts.cursor, queue.groups] @1:3
  %groups : groups, %exists : flag = take() lane=host reads[queue.groups, queue.serving] \
writes[host[k], queue.groups, queue.serving, queue.taken[k]] @1:4
  %scored : groups<rewards> = reward(%groups) lane=host reads[host[k]] @1:5
  %advantaged : groups<advantages, rewards> = advantages(%scored) {estimator="grpo"} lane=host reads[host[k]] @1:6
  %batch : batch<advantages, rewards> = pack(%advantaged) lane=host reads[host[k], packer] \
writes[host[k], packer] @1:7
  loop micro_batches: m in %batch { @1:8
    %mb : micro_batch<advantages, rewards>, %last : flag = next_mb(%batch) lane=host reads[host[k]] @1:8
    %mb.2 : micro_batch<advantages, ref_logps, rewards> = ref_logps(%mb) lane=host reads[reference.params] @1:9
    fwd_bwd(%mb.2) lane=host reads[grads, params] writes[grads, trainer.calls, trainer.metrics] @1:10
  }
  update() lane=host reads[grads, optimizer, params, trainer.step] \
writes[grads, optimizer, params, trainer.calls, trainer.metrics, trainer.step] @1:11
  %version : version = sync_weights() lane=host reads[params, trainer.step] \
writes[policy.version[k], rollout.weights[k], trainer.calls] awaits[params] @1:13
  commit() lane=host reads[policy.version[k], queue.taken[k], queue.training] writes[queue.training] @1:14
}
after {
}
resource params : state
resource trainer.step : state
resource policy.version : cell
resource rollout.weights : cell
resource trainer.calls : channel
resource prompts.cursor : state
resource rng : state
resource queue.groups : fifo
resource queue.serving : state
resource host : cell
resource queue.taken : cell
resource packer : state
resource reference.params : state
resource grads : state
resource trainer.metrics : state
resource optimizer : state
resource queue.training : state
"""

NEST = """\
program grpo
before
  initial_sync: sync_weights
step k
  dispatch
  take
  reward
  advantages
  pack
  loop micro_batches: m in %batch
    next_mb
    ref_logps
    fwd_bwd
  update
  sync_weights
  commit
"""

SMALL = step(without=("get_metrics", "log", "free"), contract=Contract(staleness=1))


def test_the_text_of_a_small_program() -> None:
    assert print_program(SMALL) == TEXT


def test_the_text_stands_for_the_program() -> None:
    assert parse_program(TEXT) == SMALL


def test_the_nest_view_shows_ops_and_loops_only() -> None:
    assert nest_view(SMALL) == NEST


def test_blank_lines_comments_and_line_ends_of_other_systems_do_not_matter() -> None:
    loose = "\ufeff" + TEXT.replace("\n", "  # said\r\n\n\n").replace("lane=", "\t lane = ")
    assert parse_program(loose) == SMALL


def _lines(build: Builder) -> list[str]:
    return print_program(build.program()).splitlines()


def test_the_parts_of_an_op_line_that_are_left_out_when_they_are_as_usual() -> None:
    build = Builder(sync=False)
    options = {"when": Every(10), "shift": 1, "origin": Origin("save", "write"), "lane": "io", "loc": Loc("a.py", 1, 5)}
    build.op("save_checkpoint", id="late", **options)
    line = next(line for line in _lines(build) if "late" in line)
    assert line.startswith("  late: save_checkpoint() lane=io shift=+1 when(every 10) from=save.write reads[grads,")
    assert line.endswith("awaits[params] @1:1:5")


def test_origins_whose_dots_would_mislead_have_a_colon() -> None:
    written = {}
    for origin in (Origin("a", "b"), Origin("a.2", "b.c"), Origin("a", "2"), Origin("a.b"), Origin("a", "b c")):
        build = Builder(sync=False)
        build.op("commit", origin=origin)
        program = build.program()
        assert parse_program(print_program(program)) == program
        written[origin] = print_program(program).split("from=")[1].split(" reads")[0]
    assert list(written.values()) == ["a.b", "a.2.b.c", 'a:"2"', 'a.b:""', 'a:"b c"']


def test_the_row_of_a_users_op() -> None:
    row = OpKind(
        "penalty",
        (Operand("groups", "groups", ("rewards",)), Operand("weight", None)),
        (Given("groups", "groups", "groups", ("penalised",)),),
        (Attr("scale", float, 0.5, (0.5, 1.0), "how much"),),
        reads=("host[k]", "rollout.weights[k-1-w]"),
        may_fail=False,
        doc='Takes "length" off.',
        user=True,
        loc=Loc("train.py", 12),
    )
    assert _lines(Builder(kinds=(row,), sync=False))[4] == (
        "op penalty(groups: groups<rewards>, weight: any) -> (groups: groups<groups.*, penalised>) "
        '{scale: float = 0.5 in (0.5, 1.0) "how much"} lane=host reads[host[k], rollout.weights[k-1-w]] '
        'may_fail=false doc="Takes \\"length\\" off." @1:12'
    )


def test_carried_values_and_operands_of_other_instances() -> None:
    row = OpKind("look", (Operand("it", None),), (Given("seen", "scalar"),), writes=("log",), user=True)
    program = step(
        kinds=(row,),
        carries=(("seen", 0.1),),
        instead={"loop": micro_batches(*_round(), loc=None)},
        after={"update": lambda build: build.op("look", Use("seen", -1), names=("seen",))},
    )
    lines = [line.strip() for line in print_program(program).splitlines()]
    assert "carry %seen = 0.1" in lines
    assert any(line.startswith("%before : scalar = look(%mb@m-1) lane=host") for line in lines)
    assert any(line.startswith("look.2: %seen : scalar = look(%seen@k-1) lane=host") for line in lines)
    assert parse_program(print_program(program)) == program


def _round():
    return (
        op("next_mb", "batch"),
        op("ref_logps", "mb"),
        op("fwd_bwd", "mb.2"),
        lambda build: build.op("look", Use("mb", 0, -1), names=("before",)),
    )


def test_a_file_inside_the_package_is_written_without_where_it_is_installed() -> None:
    import steptrace

    build = Builder(sync=False)
    build.op("commit", loc=Loc(steptrace.__file__, 3))
    assert _lines(build)[1] == 'file 1 "steptrace/__init__.py"'


def test_words_of_ops_stand_in_lines_of_those_ops_only() -> None:
    assert set(STAGES) >= {"update", "commit"}
    for word in ("update", "sync_weights", "commit", "get_metrics", "save_checkpoint"):
        for line in print_program(step()).splitlines():
            assert (word in line) <= (f"{word}(" in line), line
