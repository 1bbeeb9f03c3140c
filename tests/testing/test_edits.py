"""Edits of a program's text."""

from __future__ import annotations

import pytest

from steptrace.testing.edits import EditError, edited

TEXT = """\
steptrace 1
program mine {n=2}
contract weights=pinned staleness=0 partial=train empty=skip
before {
  initial_sync: %v0 : version = sync_weights() lane=host
}
step k {
  %batch : batch = pack(%groups) lane=host
  loop micro_batches: m in %batch {
    %mb : micro_batch, %last : flag = next_mb(%batch) lane=host
    fwd_bwd(%mb) lane=host
  }
  update() lane=host
  log.2: log(%metrics) lane=host
}
after {
}
resource host : cell
"""


def lines(edit: str) -> list[str]:
    return edited(TEXT, edit).splitlines()


def test_an_op_moves_before_and_after_another():
    text = lines("move update before pack")
    assert [line.strip()[:6] for line in text[7:9]] == ["update", "%batch"]
    text = lines("move pack after log.2")
    assert text[13].strip().startswith("%batch")


def test_a_loop_moves_with_all_that_is_in_it_and_an_op_moves_into_it():
    assert lines("move micro_batches after update")[8:13] == [
        "  update() lane=host",
        "  loop micro_batches: m in %batch {",
        "    %mb : micro_batch, %last : flag = next_mb(%batch) lane=host",
        "    fwd_bwd(%mb) lane=host",
        "  }",
    ]
    assert lines("move update after fwd_bwd")[11] == "    update() lane=host"


def test_two_change_places():
    assert lines("swap log.2 and pack")[7] == "  log.2: log(%metrics) lane=host"
    assert lines("swap micro_batches and update")[8] == "  update() lane=host"


def test_ops_and_declarations_are_dropped_and_edited():
    assert "resource host : cell" not in lines("drop resource host")
    assert len(lines("drop micro_batches")) == len(TEXT.splitlines()) - 4
    assert lines('in contract replace "staleness=0" with "staleness=1"')[2].startswith(
        "contract weights=pinned staleness=1"
    )
    assert "  update() lane=io shift=+1" in lines('in update replace "lane=host" with "lane=io shift=+1"')


def test_a_line_is_inserted():
    assert lines("insert before update: other() lane=host")[12] == "  other() lane=host"
    assert lines("insert after fwd_bwd: other() lane=host")[11] == "    other() lane=host"


def test_edits_follow_one_another_and_comments_are_skipped():
    text = lines("# first\ndrop update  # gone\n\nmove log.2 before pack")
    assert text[7].startswith("  log.2")
    assert not any("update" in line for line in text)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ("move nothing before update", "the program has no `nothing`"),
        ("shift update by 1", "`shift update by 1` is no edit"),
        ("move pack before micro_batches", "`move pack before micro_batches` changes nothing"),
        ('in update replace "lane=io" with "x"', "changes nothing"),
        ("swap fwd_bwd and micro_batches", "one holds the other"),
    ],
)
def test_an_edit_that_cannot_be_made_is_told(edit: str, message: str):
    with pytest.raises(EditError, match=message):
        edited(TEXT, edit)


def test_control_no_edit_leaves_the_text():
    assert edited(TEXT, "") == TEXT
