"""The page: it holds what it draws, needs no network, is small, and its script does what it says."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from timeline_runs import planned

import steptrace.timeline
from steptrace.timeline import page_of
from steptrace.timeline.page import embedded, figures_of

SCRIPT = Path(steptrace.timeline.__file__).with_name("page.js")
NODE = shutil.which("node")
EMPTY = {"meta", "input", "br", "link", "img", "hr"}


class Page(HTMLParser):
    """Reads a page: which elements are open, what scripts and styles say, which ids there are."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.texts: dict[str, str] = {}
        self.ids: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self._in = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.attributes += [(tag, name, value or "") for name, value in attributes]
        self.ids += [given["id"]] if "id" in given else []
        self._in = given.get("id", tag)
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)
        self._in = ""

    def handle_data(self, data):
        self.texts[self._in] = self.texts.get(self._in, "") + data


def outside(text: str) -> list[str]:
    """What a page would load from elsewhere."""
    page = Page(text)
    loads = [f"{tag} {name}" for tag, name, value in page.attributes if name in ("src", "href", "action", "poster")]
    code = page.texts.get("style", "") + page.texts.get("script", "")
    return [
        *loads,
        *re.findall(r"url\((?!#|\\?[`$'\"]?#)[^)]*\)|@import|fetch\(|XMLHttpRequest|import\(|WebSocket", code),
    ]


@pytest.mark.parametrize("pipeline", ["", "pipelined-boundary"])
def test_the_page_holds_every_op_and_line_and_nothing_from_elsewhere(pipeline: str):
    recording = planned(pipeline)
    text = page_of([recording])
    page = Page(text)
    assert (page.open, page.wrong) == ([], [])
    assert len(page.ids) == len(set(page.ids))
    assert outside(text) == []
    (panel,) = json.loads(page.texts["data"])
    assert {op for op, _, _ in panel["ops"]} == {bar.op for bar in recording.bars()}
    assert all("grpo.py:" in place for _, place, _ in panel["ops"])
    assert len(panel["bars"]) == len(recording.bars())
    assert len(panel["arrows"]) == len(recording.arrows)
    assert [row["name"] for row in panel["rows"]] == [*recording.lanes(), *recording.devices()]
    assert len(text) - len(page.texts["data"]) < 100_000
    assert "default-src 'none'" in text


@pytest.mark.parametrize(
    "more", ['<img src="https://a/b.png">', '<link rel="stylesheet" href="a.css">', "<script>fetch('/a')</script>"]
)
def test_control_what_is_loaded_from_elsewhere_is_seen(more: str):
    assert outside(page_of([planned()]).replace("</body>", f"{more}</body>")) != []


def test_what_could_end_the_script_is_written_by_number():
    bad = "</script><script>alert('&')</script><!-- \u2028"
    assert json.loads(embedded([bad])) == [bad]
    assert not set("<>&\u2028") & set(embedded([bad]))
    text = page_of([replace(planned(), program=bad, pipeline=bad, note=bad)])
    page = Page(text)
    assert (page.open, page.wrong) == ([], [])
    assert "alert('&')" not in page.texts["script"]
    assert json.loads(page.texts["data"])[0]["program"] == bad


def test_control_json_alone_would_end_the_script():
    page = Page(f'<script id="data">{json.dumps(["</script><b>"])}</script>')
    assert page.open or page.wrong


def test_figures_by_hand():
    assert figures_of(planned()) == [
        ["steps", "5"],
        ["a step", "40 s"],
        ["trainer idle at a boundary", "6 s"],
        ["trainer busy", "85.0%"],
    ]


def test_two_panels_stand_on_one_page():
    text = page_of([planned(), replace(planned("pipelined-boundary"), origin="measured")])
    assert [panel["origin"] for panel in json.loads(Page(text).texts["data"])] == ["planned", "measured"]
    assert "<title>grpo: planned and measured</title>" in text


CHECKS = r"""
const assert = require("assert"), page = require(process.argv[1]);
assert.deepStrictEqual([1.5, 0.0032, 2e-6, 3e-9, 0].map(page.said), ["1.5 s", "3.2 ms", "2 us", "3 ns", "0 s"]);
assert.deepStrictEqual(page.ticks(-1, 9, 5), [0, 2, 4, 6, 8]);
assert.strictEqual(page.fitting(["fwd_bwd 12", "fb 12"], 60), "fb 12");
assert.strictEqual(page.fitting(["fwd_bwd 12"], 20), "");
assert.strictEqual(page.initials("apply_deferred_update"), "adu");
assert.strictEqual(page.hue(-1), 5);
const a = { begins: { 0: 3, 1: 13, 2: 23 }, bars: [[0, 0, 0, null, 0, 3, 0], [0, 0, 2, null, 23, 33, 23]] };
const b = { begins: { 1: 100, 2: 120 }, bars: [[0, 0, 1, null, 100, 140, 100]] };
assert.deepStrictEqual(page.common([a, b]), [1, 2]);
assert.strictEqual(page.zero(b, 2), 120);
assert.deepStrictEqual(page.extent([a, b], 1), [-13, 40]);
assert.deepStrictEqual(page.opening([a, b], 1), [-6, 28]);
"""


@pytest.mark.skipif(NODE is None, reason="node is not installed")
def test_the_script_parses_and_lines_panels_up():
    subprocess.run([NODE, "--check", SCRIPT], check=True)
    subprocess.run([NODE, "-e", CHECKS, SCRIPT], check=True)
