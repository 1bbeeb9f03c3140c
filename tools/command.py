"""What a subcommand is: its flags, its operands, its help, and the function that carries it out."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from absl import flags

from .table import aligned


class UsageError(Exception):
    """The command line itself is wrong: an unknown flag, a missing operand, a name that means nothing."""


@dataclass(frozen=True)
class Command:
    """A subcommand.

    Attributes:
      name: what is typed after `steptrace`, `bench phases`.
      operands: its operands, as shown in the usage line.
      summary: one sentence.
      examples: command lines without `steptrace`, each with what it does.
      run: carries it out, given operands and parsed flags; returns the exit code.
      define: defines its flags.
      least: how many operands it needs.
      most: how many it takes.
      details: further help, in paragraphs.
    """

    name: str
    operands: str
    summary: str
    examples: tuple[tuple[str, str], ...]
    run: Callable[[list[str], flags.FlagValues], int]
    define: Callable[[flags.FlagValues], None] = lambda values: None
    least: int = 0
    most: int = 0
    details: str = ""

    def flag_values(self) -> flags.FlagValues:
        """Fresh flags of the command, not parsed yet. They may stand anywhere after its name."""
        values = flags.FlagValues()
        values.set_gnu_getopt(True)
        self.define(values)
        return values

    def parse(self, arguments: list[str]) -> tuple[list[str], flags.FlagValues]:
        """Operands and parsed flags.

        Raises:
          UsageError: an unknown flag, a value that does not fit, too few or too many operands.
        """
        values = self.flag_values()
        try:
            operands = values([self.name, *arguments])[1:]
        except flags.Error as error:
            raise UsageError(_in_words(str(error))) from error
        if len(operands) < self.least:
            raise UsageError(f"`{self.name}` needs {self.operands}")
        if len(operands) > self.most:
            raise UsageError(f"`{self.name}` does not take `{operands[self.most]}`")
        return operands, values

    def usage(self) -> str:
        """The usage line."""
        flag = " [FLAGS]" if _flag_names(self.flag_values()) else ""
        operands = f" {self.operands}" if self.operands else ""
        return f"steptrace {self.name}{operands}{flag}"

    def help(self) -> str:
        """The help page: usage, what it does, flags, examples."""
        parts = [f"usage: {self.usage()}", self.summary]
        if self.details:
            parts.append(self.details)
        values = self.flag_values()
        names = _flag_names(values)
        if names:
            parts.append("flags:\n" + aligned([_flag_row(values[name]) for name in names], indent=2))
        examples = [(f"steptrace {line}", meaning) for line, meaning in self.examples]
        return "\n\n".join([*parts, "examples:\n" + aligned(examples, indent=2)])


def _in_words(message: str) -> str:
    """What absl says of flags, without the words of Python's own converters."""
    said = message.removeprefix("FATAL Flags parsing error:").strip()
    for pattern, kind in _CONVERTERS:
        match = re.match(rf"flag (--[\w-]+=.*?): {pattern}", said, re.DOTALL)
        if match:
            return f"{match[1]} is not {kind}"
    return said


_CONVERTERS = (
    (r"invalid literal for int\(\)", "a whole number"),
    (r"could not convert string to float", "a number"),
    (r"\('Non-boolean argument", "true or false"),
)


def _flag_names(values: flags.FlagValues) -> list[str]:
    """Long names of the flags, sorted."""
    return sorted({values[name].name for name in values})


def _flag_row(flag: flags.Flag[object]) -> tuple[str, str]:
    """How a flag is spelled, and what it sets."""
    switch = isinstance(flag, flags.BooleanFlag)
    spelled = f"--{flag.name}" if switch else f"--{flag.name}={_placeholder(flag)}"
    default = "" if switch or flag.default in (None, "") else f" (default {flag.default})"
    return f"-{flag.short_name}, {spelled}" if flag.short_name else spelled, f"{flag.help}{default}"


def _placeholder(flag: flags.Flag[object]) -> str:
    """What stands for the value of a flag in its help."""
    return "|".join(flag.parser.enum_values) if isinstance(flag, flags.EnumFlag) else flag.name.upper()
