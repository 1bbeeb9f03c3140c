"""Case files: one program, what is done to it, and what must come out, in one text.

::

    # The weights of a step are published only after its update.
    --- in
    grpo{staleness=1}
    --- pipeline
    pipelined-boundary
    --- edit
    move sync_weights before apply_deferred_update
    --- error ST204
    error[ST204]: ...

Lines before the first ``---`` say in words what the case shows. Sections:

- ``in``: a name as on the command line, the text form, or Python that defines one ``@steptrace.program``.
- ``pipeline``: passes to apply.
- ``edit``: what to change in the text of the schedule (``steptrace.testing.edits``).
- ``out``, ``out nest``, ``out grid``: the schedule, in that view.
- ``equal``: the schedule is proved equal to its source; ``equal slow`` marks the test as slow. ``against`` names
  another source than ``in``.
- ``remarks``: what the passes say they did and left.
- ``error CODE``: what is refused: the text, the pipeline (or what a pass of it left, with that code), or the schedule
  when it is checked against its source. With a text below, that text exactly.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from steptrace.check.proof import prove_equal
from steptrace.diag.base import SteptraceError
from steptrace.ir.printer import print_program
from steptrace.ir.program import Program
from steptrace.lang.reference import resolve
from steptrace.motion import Schedule
from steptrace.testing.edits import edited
from steptrace.testing.expected import difference, updating
from steptrace.testing.texts import VIEWS, read, rendered, shown, traced, without_places

_NEWLINE = "\n"
_HEADER = re.compile(r"--- (?P<name>[a-z]+)(?: (?P<argument>\S+))?\s*")
_SECTIONS = ("in", "pipeline", "edit", "against", "out", "equal", "remarks", "error")
_EXPECTED = ("out", "equal", "remarks", "error")


class CaseError(ValueError):
    """A case file that cannot be read."""


@dataclass(frozen=True, slots=True)
class Section:
    """A section of a case file.

    Attributes:
      name: its name.
      argument: what stands behind the name: a code, a view.
      text: its lines.
      line: the line of the file at which its text begins.
    """

    name: str
    argument: str
    text: str
    line: int


@dataclass(frozen=True, slots=True)
class Case:
    """A case file.

    Attributes:
      path: the file.
      about: what stands before the first section.
      sections: its sections, in order.
    """

    path: Path
    about: str
    sections: tuple[Section, ...]

    def section(self, name: str) -> Section | None:
        """The section of that name, if the case has it."""
        return next((section for section in self.sections if section.name == name), None)

    def text(self, name: str) -> str:
        """The text of a section without blank lines around it; "" when the case has none."""
        section = self.section(name)
        return section.text.strip() if section else ""


def read_case(path: Path) -> Case:
    """Reads a case file.

    Raises:
      CaseError: it has an unknown section, one twice, no ``in``, or nothing that must come out.
    """
    about: list[str] = []
    sections: list[Section] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(keepends=True), 1):
        header = _HEADER.fullmatch(line.rstrip("\n"))
        if header:
            sections.append(Section(header["name"], header["argument"] or "", "", number + 1))
        elif sections:
            sections[-1] = replace(sections[-1], text=sections[-1].text + line)
        else:
            about.append(line)
    case = Case(path, "".join(about), tuple(sections))
    _check(case)
    return case


def _check(case: Case) -> None:
    names = [section.name for section in case.sections]
    for section in case.sections:
        where = f"{case.path}:{section.line - 1}"
        if section.name not in _SECTIONS:
            raise CaseError(f"{where}: there is no section `{section.name}`; there are {', '.join(_SECTIONS)}")
        if names.count(section.name) > 1:
            raise CaseError(f"{where}: section `{section.name}` stands there twice")
        if section.name == "out" and section.argument not in ("", *VIEWS):
            raise CaseError(f"{where}: there is no view `{section.argument}`; there are {', '.join(VIEWS)}")
        if section.name == "equal" and section.argument not in ("", "slow"):
            raise CaseError(f"{where}: `equal` stands by itself, or with `slow` for a test that takes seconds")
        if section.name == "error" and not re.fullmatch(r"ST\d\d\d", section.argument):
            raise CaseError(f"{where}: an error is expected by its code: --- error ST204")
    if "in" not in names:
        raise CaseError(f"{case.path}: no section `in`")
    if not set(_EXPECTED).intersection(names):
        raise CaseError(f"{case.path}: nothing is expected: {', '.join(_EXPECTED)}")


def run_case(case: Case) -> None:
    """Does what a case says and compares; with ``STEPTRACE_UPDATE=1`` writes what came out into the file.

    Raises:
      AssertionError: something else came out.
      EditError, CaseError: the case itself is wrong.
    """
    found = _outcome(case)
    for section in case.sections:
        if section.name not in _EXPECTED:
            continue
        if section.name not in found:
            raise AssertionError(_unexpected(section, found))
        if section.name == "error" and found["error"][0] != section.argument:
            raise AssertionError(f"refused with {found['error'][0]}, not {section.argument}:\n{found['error'][1]}")
    if "error" in found and case.section("error") is None:
        raise AssertionError(f"refused:\n{found['error'][1]}")
    _compare(case, found)


def _unexpected(section: Section, found: dict[str, tuple[str, str]]) -> str:
    if section.name == "error":
        return f"nothing was refused, where {section.argument} was expected"
    return f"no `{section.name}`, since it was refused:\n{found['error'][1]}"


def _compare(case: Case, found: dict[str, tuple[str, str]]) -> None:
    """Compares texts; those left empty stand for any."""
    sections = []
    for section in case.sections:
        text = found[section.name][1] if section.name in _EXPECTED else section.text
        wanted = section.text.strip("\n")
        free = section.name == "equal" or (section.name == "error" and not wanted and not updating())
        if not free and wanted != text.strip("\n"):
            if not updating():
                title = f"{section.name} {section.argument}".strip()
                raise AssertionError(f"another `{title}`\n{difference(wanted, text.strip(_NEWLINE))}")
            section = replace(section, text=text)
        sections.append(section)
    if tuple(sections) != case.sections:
        case.path.write_text(written(replace(case, sections=tuple(sections))), encoding="utf-8")


def written(case: Case) -> str:
    """A case as the text of its file."""
    parts = [case.about]
    for section in case.sections:
        parts.append(f"--- {section.name}{f' {section.argument}' if section.argument else ''}\n{section.text}")
    return "".join(parts)


def _outcome(case: Case) -> dict[str, tuple[str, str]]:
    """What comes out, for each section that can expect something: its argument and its text."""
    wanted = case.section("error")
    found: dict[str, tuple[str, str]] = {}
    try:
        source = _source(case)
        schedule = Schedule.of(source)
        if case.text("pipeline"):
            from steptrace.passes import run_pipeline

            result = run_pipeline(source, case.text("pipeline"))
            schedule = result.schedule
            found["remarks"] = ("", without_places("".join(f"{remark}\n" for remark in result.remarks)))
            missed = [remark for remark in result.remarks if remark.kind == "missed"]
            for remark in missed:
                if wanted is not None and remark.code == wanted.argument:
                    found["error"] = (remark.code, without_places(f"{remark}\n"))
        program = schedule.program
        if case.text("edit"):
            program = read(edited(print_program(program), case.text("edit")), "<edited>")
        _judge(case, program, source, schedule, found)
    except SteptraceError as error:
        found["error"] = (error.code, rendered(error))
    return found


def _judge(
    case: Case, program: Program, source: Program, schedule: Schedule, found: dict[str, tuple[str, str]]
) -> None:
    out = case.section("out")
    if out is not None:
        reference = schedule.reference if program is schedule.program else None
        found["out"] = ("", shown(program, out.argument or "text", reference))
    if case.section("equal") is not None or (case.section("error") is not None and "error" not in found):
        prove_equal(program, resolve(case.text("against")) if case.text("against") else source)
        found["equal"] = ("", "")


def _source(case: Case) -> Program:
    section = case.section("in")
    assert section is not None, "a case that was read has an `in`"
    text = section.text.strip()
    if text.startswith("steptrace "):
        return read(section.text, case.path.name)
    if "\n" not in text and "@" not in text:
        return resolve(text)
    return traced(section.text, case.path.name, section.line)
