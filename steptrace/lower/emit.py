"""A plan as a Python loop: one function for each lane, with its waits and signals.

The text runs on `steptrace.run.emitted`, which gives it the ops by id, the values of each step, and a way to wait for
another lane; what runs in which order, under which condition and behind which wait is in the text alone. At its end
stand the schedule and its source as text, from which the ops have their attributes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby

from steptrace.diag import Loc
from steptrace.ir import Loop, Node, Op
from steptrace.ir.printer import print_program, written_path
from steptrace.lower.emit_places import OUTSIDE, Around, Places, by_rounds
from steptrace.lower.lowering import HEADS
from steptrace.lower.plan import Call, Lane, LoopPlan, Plan, PlanNode, StreamPlan, calls_of

INDENT = "    "


def emit(plan: Plan, title: str = "") -> str:
    """The plan as Python.

    Args:
      plan: the plan.
      title: what the text is called in its first line; the program's name when left out.

    Returns:
      The text of a module with ``run(parts, steps, ...)``, which gives what `steptrace.run` gives.
    """
    maker = _Emitter(plan)
    names = [_function(lane.name) for lane in plan.lanes if lane.nodes]
    parts = [
        _head(plan, title or plan.program.name),
        *(maker.lane(lane, name) for lane, name in zip(_busy(plan), names, strict=True)),
        maker.once("before", plan.prologue, "What runs once before step 0, as step -1.", "loop.before"),
        maker.once("after", plan.epilogue, "What runs once behind the last step.", "loop.scratch"),
        _run_function(names),
        _texts(plan),
    ]
    return "\n\n\n".join(parts) + "\n"


def _busy(plan: Plan) -> Iterator[Lane]:
    return (lane for lane in plan.lanes if lane.nodes)


def _function(lane: str) -> str:
    return "lane_" + re.sub(r"\W", "_", lane)


def _head(plan: Plan, title: str) -> str:
    lanes = ", ".join(lane.name for lane in _busy(plan))
    title = title.replace("\\", "\\\\").replace('"""', "'''")
    return f'''"""{title}, as a Python loop. Lanes: {lanes}.

A step k is run in several turns t where ops run ahead of their place (k = t + 1). `v` holds the values of step k, `r`
those of one of its micro-batches. A lane waits until another one is past an op, and signals what others wait for, also
where the op itself had nothing to do. `run(parts, steps)` runs it.
"""

from itertools import count

from steptrace.run.emitted import Loop, opened'''


def _run_function(names: list[str]) -> str:
    return f'''def run(parts, steps=None, **options):
    """Run so many steps, or to the end of the data.

    Args:
      parts: as `steptrace.run` takes them.
      steps: how many; None with `epochs`.
      **options: `seed`, `epochs`, `out`, `stall_s`, `stage_latch_s`, `target`, as `steptrace.run` takes them.
    """
    with opened(SCHEDULE, SOURCE, parts, steps, **options) as loop:
        before(loop)
        loop.lanes({", ".join(names)})
        after(loop)
    return loop.result()'''


def _texts(plan: Plan) -> str:
    schedule, source = print_program(plan.program), print_program(plan.base.program)
    given = f"SOURCE = {_quoted(source)}"
    return f"{given}\n\nSCHEDULE = {'SOURCE' if schedule == source else _quoted(schedule)}"


def _quoted(text: str) -> str:
    if '"""' in text or "\\" in text:
        return repr(text)
    return f'"""\\\n{text}"""'


class _Emitter:
    """Writes the functions of a plan."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._places = Places(plan)
        held = {hold.before for holds in plan.holds.values() for hold in holds}
        streams = [node for lane in plan.lanes for node in lane.nodes if isinstance(node, StreamPlan)]
        self._watched = held | {node.head.op.id for node in streams if node.shared}
        program = plan.program
        self._loops = {loop.id: loop for loop in _loops((*program.prologue, *program.body, *program.epilogue))}

    def lane(self, lane: Lane, name: str) -> str:
        """The function of a lane."""
        lines = [
            f"def {name}(loop: Loop) -> None:",
            f'{INDENT}"""What lane `{lane.name}` runs."""',
            f'{INDENT}for t in loop.turns("{lane.name}", most={lane.most}, least={lane.least}):',
        ]
        for shift, nodes in groupby(lane.nodes, _shift):
            lines += [
                f"{INDENT * 2}k = t{f' + {shift}' if shift else ''}",
                f"{INDENT * 2}if loop.begun(k):",
                f"{INDENT * 3}v = loop.values(k)",
                *_indented(self._nodes(tuple(nodes), OUTSIDE), 3),
            ]
        return "\n".join(lines)

    def once(self, name: str, nodes: tuple[PlanNode, ...], doc: str, values: str) -> str:
        """The function of what runs once."""
        lines = [f"def {name}(loop: Loop) -> None:", f'{INDENT}"""{doc}"""']
        if nodes:
            lines += [f"{INDENT}k, v = loop.step, {values}", *_indented(self._nodes(nodes, OUTSIDE), 1)]
        return "\n".join(lines)

    def _nodes(self, nodes: tuple[PlanNode, ...], around: Around) -> Iterator[str]:
        seen: Loc | None = None
        for node in nodes:
            loc = node.op.loc if isinstance(node, Call) else node.loc
            if loc is not None and (seen is None or (loc.file, loc.line) != (seen.file, seen.line)):
                yield _remark(loc)
            seen = loc
            if isinstance(node, Call):
                yield from self._op(node, around)
            elif isinstance(node, LoopPlan):
                yield from self._loop(node, around)
            else:
                yield from self._stream(node)

    def _op(self, call: Call, around: Around) -> Iterator[str]:
        """An op directly in the step or in a loop that runs as one piece."""
        first = self._plan.peeled.get(call.op.id)
        yield from self._waits(call.op.id)
        if first is None:
            yield from self._guarded(call, around, "")
        else:
            micro_batch, last = (self._places.value(slot) for slot in first.writes[:2])
            there = "" if first is call or call.kind.polls else f"{micro_batch} is not None"
            yield from self._guarded(call, Around("0", last, ("0",)), there)
        if not around.at:
            yield from self._signal(call.op.id)

    def _guarded(self, call: Call, around: Around, there: str) -> Iterator[str]:
        """A call under its conditions."""
        asked = self._places.condition(call.when, around)
        conditions = [text for text in (there, f"({asked})" if there and " or " in asked else asked) if text]
        if not conditions:
            yield from self._assigned(call, around)
            return
        yield f"if {' and '.join(conditions)}:"
        yield from _indented(self._assigned(call, around))

    def _assigned(self, call: Call, around: Around) -> Iterator[str]:
        made, called = self._places.made(call), self._called(call, around)
        if call.kind.name in HEADS:  # a loop without an item
            yield f"made = {called}"
            yield "if made is not None:"
            yield f"{INDENT}{made} = made"
        else:
            yield f"{made} = {called}" if made else called

    def _called(self, call: Call, around: Around) -> str:
        given = [f'"{call.op.id}"', "k", *(self._places.read(read) for read in call.reads)]
        if around.at:
            given.append(f"at=({', '.join(around.at)}{',' * (len(around.at) == 1)})")
        given += [f"of={around.of}"] * (around.of is not None)
        return f"loop.call({', '.join(given)})"

    def _waits(self, id: str, micro: str = "", start: int = 0) -> Iterator[str]:
        for hold in self._plan.holds.get(id, ()):
            if hold.micro is None:
                yield f'loop.wait("{hold.before}", {_back("k", hold.distance)})  # {hold.why}'
                continue
            wait = f'loop.wait("{hold.before}", k, {_back(micro, hold.micro)})  # {hold.why}'
            yield wait if not hold.micro else f"if {micro} >= {start + hold.micro}: {wait}"

    def _signal(self, id: str, micro: str = "") -> Iterator[str]:
        if id in self._watched:
            yield f'loop.signal("{id}", k{", " + micro if micro else ""})'

    def _counter(self, loop: str, around: Around) -> str:
        """A name for a loop's counter that no loop around it has."""
        name = self._loops[loop].var
        while name in around.at:
            name += "_"
        return name

    def _loop(self, loop: LoopPlan, around: Around) -> Iterator[str]:
        """A loop that runs as one piece."""
        for hold in self._plan.holds.get(loop.id, ()):
            yield f'loop.wait("{hold.before}", {_back("k", hold.distance)})  # {hold.why}'
        counter = self._counter(loop.id, around)
        inside = replace(around, at=(*around.at, counter), of=loop.count)
        if loop.kind == "micro_batches" and loop.head is not None:
            inside = replace(inside, micro=counter, last=self._places.value(loop.head.writes[1]))
        yield f"for {counter} in {'count()' if loop.count is None else f'range({loop.count})'}:"
        if loop.head is not None:
            yield from _indented(self._drawn(loop.head, inside, counter, ()))
        yield from _indented(self._nodes(loop.body, inside))
        for id in (loop.id, *(call.op.id for call in calls_of((loop,)))):
            yield from self._signal(id)

    def _drawn(self, head: Call, around: Around, counter: str, at_end: Iterable[str]) -> Iterator[str]:
        """The next item of a loop, or the loop's end."""
        yield from self._waits(head.op.id, counter)
        yield f"made = {self._called(head, around)}"
        yield "if made is None:"
        yield from _indented(at_end)
        yield f"{INDENT}break"
        yield f"{self._places.made(head)} = made"

    def _stream(self, stream: StreamPlan) -> Iterator[str]:
        peeled = stream.peeled
        drawn = stream.leads and peeled is not None and peeled.kind.name == "stream_mb"
        if by_rounds(stream) or drawn or stream.calls[0] is not stream.head:
            yield from self._rounds(stream, drawn)
        else:
            yield from self._plain(stream)
        for id in (stream.id, *(call.op.id for call in stream.calls)):
            yield from self._signal(id)

    def _plain(self, stream: StreamPlan) -> Iterator[str]:
        """A lane that has a loop to itself, one round after the other."""
        counter = self._loops[stream.id].var
        around = Around(counter, self._places.value(stream.head.writes[1]), (counter,))
        rest = stream.calls[1:]
        late = [line for call in rest for line in self._waits(call.op.id, counter, stream.start)]
        yield f"for {counter} in count({stream.start or ''}):"
        yield from _indented(self._drawn(stream.head, around, counter, late))
        yield from _indented(self._signal(stream.head.op.id, counter))
        for call in rest:
            yield from _indented(self._waits(call.op.id, counter, stream.start))
            yield from _indented(self._guarded(call, around, ""))
            yield from _indented(self._signal(call.op.id, counter))

    def _rounds(self, stream: StreamPlan, drawn: bool) -> Iterator[str]:
        """A lane's part of a loop whose rounds overlap, or that it shares with others."""
        counter = self._loops[stream.id].var
        yield f'rounds = loop.rounds("{stream.id}", k)'
        if drawn and stream.peeled is not None:
            yield f"if {self._places.value(stream.peeled.writes[0])} is None:"
            yield f"{INDENT}rounds.end({stream.start})"
        yield f"for u in count({stream.start - stream.ahead}):"
        for call in stream.calls:
            shift = call.op.shift
            yield f"{INDENT}{counter} = u{f' + {shift}' if shift else ''}"
            inside = list(self._round(stream, call, counter))
            if stream.ahead:
                yield f"{INDENT}if {counter} >= {stream.start}:"
            yield from _indented(inside, 2 if stream.ahead else 1)
        if not stream.shared:
            yield f"{INDENT}rounds.drop(u)"
        yield f"{INDENT}if rounds.over(u):"
        yield f"{INDENT * 2}break"

    def _round(self, stream: StreamPlan, call: Call, counter: str) -> Iterator[str]:
        """A call of one round."""
        keyed, id = by_rounds(stream), call.op.id
        around = Around(counter, self._places.value(stream.head.writes[1]), (counter,))
        yield from self._waits(id, counter, stream.start)
        if call is stream.head:
            yield f"if rounds.open({counter}):"
            yield f"{INDENT}made = {self._called(call, around)}"
            yield f"{INDENT}if made is None:"
            yield f"{INDENT * 2}rounds.end({counter})"
            yield f"{INDENT}else:"
            yield from [f"{INDENT * 2}r = rounds.new({counter})"] * keyed
            yield f"{INDENT * 2}{self._places.made(call)} = made"
            yield from _indented(self._signal(id, counter))
            return
        if not stream.leads:
            yield f'loop.wait("{stream.head.op.id}", k, {counter})  # the micro-batch, or that there is none'
        yield f"if rounds.open({counter}):"
        yield from [f"{INDENT}r = rounds[{counter}]"] * keyed
        yield from _indented(self._guarded(call, around, ""))
        yield from _indented(self._signal(id, counter))


def _back(name: str, distance: int) -> str:
    return f"{name} - {distance}" if distance else name


def _shift(node: PlanNode) -> int:
    return node.op.shift if isinstance(node, Call) else 0


def _indented(lines: Iterable[str], depth: int = 1) -> Iterator[str]:
    return (INDENT * depth + line for line in lines)


def _remark(loc: Loc) -> str:
    """The user's line."""
    source = loc.source()
    place = f"# {written_path(loc.file)}:{loc.line}"
    return place if not source or source.startswith(("def ", "@")) else f"{place}  {source}"


def _loops(nodes: tuple[Node, ...]) -> Iterator[Loop]:
    for node in nodes:
        if not isinstance(node, Op):
            yield node
            yield from _loops(node.body)
