"""`steptrace explain NAME`: the manual page of an error code, an op, a pass, a named pipeline, or a word of a dump."""

from __future__ import annotations

import difflib
import inspect

from absl import flags

from ..command import Command, UsageError


def _run(operands: list[str], _: flags.FlagValues) -> int:
    from steptrace.diag.registry import all_codes, manual_page
    from steptrace.ir.builtin import BUILTIN
    from steptrace.passes import PASSES, PIPELINES

    from ..dump_words import WORDS, word_page, words_page

    codes = all_codes()
    if not operands:
        for code, error in codes.items():
            print(f"{code}  {inspect.cleandoc(error.__doc__ or '').partition(chr(10))[0]}")
        return 0
    name = operands[0] if operands[0] in WORDS else operands[0].removeprefix("error[").rstrip("]:")
    if name in BUILTIN:
        from ..op_pages import op_page

        print(op_page(BUILTIN[name]))
        return 0
    if name in PASSES or name in PIPELINES:
        from ..pass_pages import pass_page

        print(pass_page(name))
        return 0
    if name in (*WORDS, "dump"):
        print(words_page() if name == "dump" else word_page(name))
        return 0
    page = manual_page(name)
    if page is None:
        near = difflib.get_close_matches(name, [*codes, *BUILTIN, *PASSES, *PIPELINES, *WORDS], n=5, cutoff=0.5)
        near = near or difflib.get_close_matches(name.upper(), codes, n=5, cutoff=0.5)
        hint = (
            f"near ones: {', '.join(near)}"
            if near
            else "`steptrace explain` lists the codes, `steptrace passes` the passes"
        )
        raise UsageError(f"`{name}` is no code, op, pass, pipeline or word of a dump; {hint}")
    print(f"{name.upper()} {codes[name.upper()].__name__}\n\n{page}")
    return 0


COMMAND = Command(
    name="explain",
    operands="[NAME]",
    summary="The manual page of an error code (what is wrong, an example, ways out), an op, a pass, a word of a dump.",
    examples=(
        ("explain ST600", "what the code means and how to get around it"),
        ("explain update", "all about an op"),
        ("explain take-ahead", "what a pass hides, holds and declines, and its options"),
        ("explain pipelined-boundary", "the passes of a named pipeline"),
        ("explain dump", "the words of a dump"),
        ("explain", "every code, one a line"),
    ),
    run=_run,
    most=1,
)
