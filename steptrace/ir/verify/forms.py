"""Names, contract, rows, conditions and attributes: what each item must be by itself."""

from __future__ import annotations

import re

from steptrace.diag.structure import BadConditionError, ResourcesDisagreeError
from steptrace.diag.text import (
    BadContractError,
    BadResourceError,
    BadRowError,
    DuplicateNameError,
    UnwritableNameError,
)
from steptrace.ir.agree import CONTRACT_CHOICES, misfits, resource_misfit, row_misfit
from steptrace.ir.lexer import NAME
from steptrace.ir.predicate import And, Every, Has, MicroIs, Not, Or, Predicate, flags_of
from steptrace.ir.program import Loop, Node, Op
from steptrace.ir.resource import ANY, Resource, ResourceKind, parts_of_pool
from steptrace.ir.verify.ground import Ground

_NAME = re.compile(NAME)


def check_contract(ground: Ground) -> None:
    """The clauses of the contract are among those that exist."""
    contract = ground.program.contract
    for name, choices in CONTRACT_CHOICES.items():
        if getattr(contract, name) not in choices:
            message = f"`{name}` of the contract is one of {', '.join(choices)}, not {getattr(contract, name)!r}"
            ground.report_item(BadContractError, message, "contract", ground.program.loc)
    if contract.staleness < 0:
        message = f"the staleness is a number of updates, 0 or more, not {contract.staleness}"
        ground.report_item(BadContractError, message, "contract", ground.program.loc)


def check_rows(ground: Ground) -> None:
    """Users' rows do not contradict the built-in table or themselves, and each op's row exists once."""
    names = set()
    for kind in ground.program.kinds:
        item = f"row {kind.name}"
        if kind.name in names:
            ground.report_item(
                DuplicateNameError, f"two rows are called `{kind.name}`", item, kind.loc or ground.program.loc
            )
        names.add(kind.name)
        wrong = row_misfit(kind)
        if wrong:
            ground.report_item(BadRowError, wrong, item, kind.loc or ground.program.loc)
        if not _NAME.fullmatch(kind.name):
            message = f"{kind.name!r} cannot be written as the name of an op"
            ground.report_item(UnwritableNameError, message, item, kind.loc or ground.program.loc)


def check_names(ground: Ground, nodes: tuple[Node, ...]) -> None:
    """Names can be written, and ids are unique."""
    seen: set[str] = set()
    for node in nodes:
        if node.id in seen:
            message = f"`{node.id}` is the id of two ops or loops"
            ground.report(DuplicateNameError, message, node, help=f"call the second `{node.id}.2`")
        seen.add(node.id)
        for name in _names_of(node):
            if not _NAME.fullmatch(name):
                ground.report(UnwritableNameError, f"{name!r} cannot be written as a name", node)


def _names_of(node: Node) -> list[str]:
    if isinstance(node, Loop):
        return [node.id, node.var, *([node.over.name] if node.over else [])]
    values = [use.name for use in node.args] + [result.name for result in node.results]
    origin = [node.origin.op] if node.origin else []
    capabilities = [atom.capability for atom in _atoms(node.when) if isinstance(atom, Has)]
    return [node.id, node.kind, *origin, *values, *flags_of(node.when), *capabilities]


def check_ops(ground: Ground) -> None:
    """Each op agrees with its row, and its condition has a meaning."""
    types = {result.name: result.type for op in ground.program.ops() for result in op.results}
    for op in ground.program.ops():
        for misfit in misfits(op, ground.kinds, types):
            ground.report(misfit.error, misfit.message, op, misfit.part, help=misfit.help)
        wrong = _meaningless(op)
        if wrong:
            ground.report(BadConditionError, wrong, op, "when")


def _meaningless(op: Op) -> str:
    for atom in _atoms(op.when):
        if isinstance(atom, Every) and atom.period < 1:
            return f"`every {atom.period}` is no period: it counts steps, at least 1"
        if isinstance(atom, MicroIs) and atom.index < 0:
            return f"`m == {atom.index}` is never true: micro-batches are counted from 0"
        if isinstance(atom, And | Or):
            return "`and` and `or` join two conditions or more"
    return ""


def _atoms(predicate: Predicate) -> list[Predicate]:
    """The atoms of a condition; a conjunction or disjunction of fewer than two terms counts as one."""
    match predicate:
        case Not(term):
            return _atoms(term)
        case And(terms) | Or(terms) if len(terms) >= 2:
            return [atom for term in terms for atom in _atoms(term)]
    return [predicate]


def check_resources(ground: Ground) -> None:
    """The declared resources are those that the ops name in their effects, and only cells are indexed."""
    program = ground.program
    declared: dict[str, Resource] = {}
    for resource in program.resources:
        item = f"resource {resource.name}"
        if resource.name in declared:
            ground.report_item(DuplicateNameError, f"{item} is declared twice", item, program.loc)
        declared[resource.name] = resource
        wrong = resource_misfit(resource)
        if wrong:
            ground.report_item(BadResourceError, wrong, item, program.loc)
        if not _NAME.fullmatch(resource.name):
            message = f"{resource.name!r} cannot be written as the name of a resource"
            ground.report_item(UnwritableNameError, message, item, program.loc)
    _check_touched(ground, declared)


def _check_touched(ground: Ground, declared: dict[str, Resource]) -> None:
    program = ground.program
    touched = set()
    for op in program.ops():
        for effect in ground.effects(op):
            known = declared.get(effect.resource)
            if effect.resource not in touched and known is None and effect.resource != ANY:
                message = f"`{op.id}` {effect.access.value} `{effect}`, and no resource of that name is declared"
                ground.report(ResourcesDisagreeError, message, op, f"{effect.access.value} {effect}")
            elif known is not None and effect.index is not None and known.kind is not ResourceKind.CELL:
                message = f"`{op.id}` {effect.access.value} `{effect}`, but `{known.name}` is one {known.kind.value}"
                help = "only a cell, one for each step, is indexed with k"
                ground.report(BadResourceError, message, op, f"{effect.access.value} {effect}", help=help)
            touched.add(effect.resource)
    for name, resource in declared.items():
        if name not in touched and not parts_of_pool(resource, touched):
            message = f"no op touches the resource `{name}`"
            help = "remove its declaration; or put back the op that touched it, if its line is gone from the text"
            ground.report_item(ResourcesDisagreeError, message, f"resource {name}", program.loc, help=help)
