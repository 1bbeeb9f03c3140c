"""The text of pipelines: what is read, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from steptrace.diag import SteptraceError
from steptrace.motion import Schedule
from steptrace.passes import PASSES, PIPELINES, parse_pipeline, text_of


@dataclass(frozen=True)
class Typed:
    """A pass with an option of each type."""

    name: ClassVar[str] = "typed"
    count: int = 3
    rate: float = 0.5
    loud: bool = False
    lane: str = "io"

    def run(self, schedule: Schedule) -> Schedule:
        return schedule


KNOWN = {**PASSES, "typed": Typed}


def texts(pipeline: str) -> list[str]:
    return [text_of(one) for one in parse_pipeline(pipeline, KNOWN)]


@pytest.mark.parametrize(
    ("pipeline", "passes"),
    [
        ("", []),
        ("  ", []),
        ("dce", ["dce"]),
        ("take-ahead", ["take-ahead{depth=1}"]),
        (" take-ahead { depth = 2 } , dce{} ", ["take-ahead{depth=2}", "dce"]),
        ("typed{count=-1,rate=1e-3,loud=true,lane=rollout}", ["typed{count=-1, rate=0.001, loud=true, lane=rollout}"]),
        ('typed{lane="x\ny"}', ['typed{count=3, rate=0.5, loud=false, lane="x\ny"}']),
        ("pipelined-boundary-unstaged,dce", ["take-ahead{depth=1}", "defer-metrics", "send-ahead", "dce"]),
    ],
)
def test_what_is_read(pipeline: str, passes: list[str]):
    assert texts(pipeline) == passes


@pytest.mark.parametrize("name", PIPELINES)
def test_named_pipelines_are_read_back_from_their_passes(name: str):
    assert parse_pipeline(",".join(texts(name))) == parse_pipeline(name)


@pytest.mark.parametrize("cls", PASSES.values(), ids=PASSES)
def test_every_pass_says_what_it_hides_and_when_it_declines(cls: type):
    page = cls.__doc__ or ""
    assert "Declines" in page
    assert "Hold" in page
    assert any(word in page for word in ("Hides", "Saves"))
    assert cls.run.__doc__


REFUSED = [
    ("take-ahed", "ST302", "there is no pass `take-ahed`", "did you mean `take-ahead`?"),
    ("pipelined-bondary", "ST302", "there is no pass `pipelined-bondary`", "did you mean `pipelined-boundary`?"),
    ("take-ahead{dept=1}", "ST285", "`take-ahead` has no option `dept`", "its options: depth: int = 1"),
    ("dce{depth=1}", "ST285", "`dce` has no option `depth`", "it has no options"),
    (
        "take-ahead{depth=x}",
        "ST285",
        "`depth` of `take-ahead` is a whole number, not `x`",
        "its options: depth: int = 1",
    ),
    ("take-ahead{depth=0}", "ST285", "`depth` of `take-ahead` is a number of steps, at least 1, not 0", None),
    ("dce,take-ahead{depth=-1}", "ST285", "`depth` of `take-ahead` is a number of steps, at least 1, not -1", None),
    ("one-step-off{staleness=0}", "ST285", "`staleness` of `one-step-off` counts updates, at least 1, not 0", None),
    ("typed{loud=yes}", "ST285", "`loud` of `typed` is true or false, not `yes`", None),
    ("typed{rate=fast}", "ST285", "`rate` of `typed` is a number, not `fast`", None),
    ("take-ahead{depth=1,depth=2}", "ST285", "`depth` of `take-ahead` is given twice", ""),
    ("pipelined-boundary{depth=2}", "ST285", "the pipeline `pipelined-boundary` has no options", None),
    ("take-ahead{depth=1", "ST284", "the pipeline `take-ahead{depth=1` cannot be read at `{depth=1`", None),
    ("take-ahead,", "ST284", "the pipeline `take-ahead,` cannot be read at its end", None),
    ("take-ahead dce", "ST284", "the pipeline `take-ahead dce` cannot be read at `dce`", None),
    ("take-ahead{depth}", "ST284", "`depth` is no option of `take-ahead` in `take-ahead{depth}`", None),
    (",dce", "ST284", "the pipeline `,dce` cannot be read at `,dce`", None),
]


@pytest.mark.parametrize(("pipeline", "code", "message", "help"), REFUSED, ids=[row[0] for row in REFUSED])
def test_what_is_refused(pipeline: str, code: str, message: str, help: str | None):
    with pytest.raises(SteptraceError) as refused:
        parse_pipeline(pipeline, KNOWN)
    assert (refused.value.code, refused.value.message) == (code, message)
    assert help is None or refused.value.help == help


def test_a_name_that_resembles_none_lists_all():
    with pytest.raises(SteptraceError) as refused:
        parse_pipeline("zzz")
    assert refused.value.help.startswith("there are async-checkpoint, ")
