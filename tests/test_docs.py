"""README and BUILD say what is so: the grammar is the parser's, the command lines parse, the files are there."""

from __future__ import annotations

import inspect
import re
import shlex
from pathlib import Path

import pytest

import steptrace.ir.parser
from steptrace_tools import bench, commands
from steptrace_tools.cli import load
from steptrace_tools.command import UsageError

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "BUILD.md")


def command_lines(text: str) -> list[list[str]]:
    """The words of each `steptrace ...` in blocks of code and between backticks, up to a pipe or comment."""
    blocks = re.findall(r"```\w*\n(.*?)```", text, re.DOTALL)
    spans = re.findall(r"`(steptrace [^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    lines = [line for block in blocks for line in block.splitlines()] + spans
    parts = [part.strip() for line in lines for part in re.split(r" \| | && |#", line)]
    return [shlex.split(part)[1:] for part in parts if part.startswith("steptrace ")]


def parse(words: list[str]) -> None:
    """Parse one command line; raises `UsageError` where it is wrong."""
    name, *rest = words
    if name == "help":
        return
    command = load(rest.pop(0), bench) if name == "bench" else load(name, commands)
    command.parse(rest)


@pytest.mark.parametrize("page", PAGES)
def test_the_command_lines_parse(page: str):
    lines = command_lines((ROOT / page).read_text())
    assert lines
    for words in lines:
        parse(words)


def test_control_a_wrong_command_line_is_seen():
    (words,) = command_lines("```\nsteptrace dump grpo --tree | steptrace-check  # shows it\n```")
    assert words == ["dump", "grpo", "--tree"]
    with pytest.raises(UsageError):
        parse(words)


@pytest.mark.parametrize("page", PAGES)
def test_the_files_it_links_to_are_there(page: str):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", (ROOT / page).read_text()):
        assert (ROOT / target).exists(), target


def test_the_grammar_is_the_parsers():
    grammar = re.search(r"```\n(program   =.*?)```", (ROOT / "BUILD.md").read_text(), re.DOTALL)
    assert grammar
    lines = [f"    {line}".rstrip() for line in grammar[1].splitlines()]
    assert "\n".join(lines) in inspect.cleandoc(steptrace.ir.parser.__doc__ or "")
