"""The op table as text: one line for each row, and a page for one of them."""

from __future__ import annotations

from collections.abc import Iterable

from steptrace.ir.kind import REQUIRED, UNSET, Attr, OpKind

from .table import aligned


def op_table(kinds: Iterable[OpKind]) -> str:
    """One line for each row: name, operands, results, what does its work, doc."""
    rows = [("op", "takes", "gives", "work on", "what it does")]
    for kind in kinds:
        takes = ", ".join(map(str, kind.operands))
        gives = ", ".join(map(str, kind.results))
        rows.append((kind.name, takes, gives, kind.device or kind.lane, kind.doc))
    return aligned(rows)


def op_page(kind: OpKind) -> str:
    """Everything that the table says about one row."""
    facts = [
        *(("takes", f"{operand.name} : {operand}") for operand in kind.operands),
        *(("gives", f"%{given.name} : {given}") for given in kind.results),
        *(("attribute", _attribute(attr)) for attr in kind.attrs),
        ("reads", ", ".join(kind.reads)),
        ("writes", ", ".join(kind.writes)),
        ("awaits", ", ".join(kind.awaits)),
        ("declares", "its further effects, by `reads` and `writes`; absent, everything" if kind.declares else ""),
        ("lane", kind.lane),
        ("work on", kind.device or "the lane"),
        ("returns", "when its work is finished" if kind.blocking else "at dispatch, before its work is finished"),
        *((("waits for", "all that reads its operand to be done"),) if kind.frees else ()),
        ("may fail", "yes" if kind.may_fail else "no"),
        ("laws", ", ".join(kind.laws)),
        ("bound to", kind.binds or "the runtime"),
        ("cost", kind.cost),
        ("example", kind.example),
    ]
    shown = aligned([(name, text) for name, text in facts if text], indent=2)
    return f"op {kind.name}\n\n{kind.doc}\n\n{shown}"


def _attribute(attr: Attr) -> str:
    text = f"{attr.name}: {attr.type.__name__}"
    if attr.default is REQUIRED:
        text += ", required"
    elif attr.default is not UNSET:
        text += f" = {attr.default!r}"
    if attr.choices:
        text += f", one of {', '.join(map(str, attr.choices))}"
    return f"{text}; {attr.doc}"
