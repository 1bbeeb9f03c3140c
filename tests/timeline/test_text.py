"""Timelines as text: to the scale of time, in so many columns."""

from __future__ import annotations

from timeline_runs import planned

from steptrace.timeline import text_of


def test_two_steps_by_hand():
    """Step 2 begins at 83 s; a step takes 40 s: 30 of work, 4 of the update, 6 of log, pack and the first call.

    Its second call comes then, its third one waits for the first micro-batch until 93 s, metrics for the update.
    """
    assert text_of(planned(), width=89, first=2, steps=2).splitlines() == [
        "planned: grpo, steps 2 to 3, a column is 1 s",
        "host     ||fb.2@2~~|get_metrics@2~~~~~~~~~~|l=|p|||fb.2@3~~|get_metrics@3~~~~~~~~~~|l=|p|",
        "trainer  |fwd_bwd.0|fwd_bwd.1|fwd_bwd.2|u@2......|fwd_bwd.0|fwd_bwd.1|fwd_bwd.2|u@3......",
        "trainer idle for 6 s at the boundary behind step 2",
        "trainer idle for 6 s at the boundary behind step 3",
        "op.micro-batch@step, by initials where there is little room; | begins an op; "
        "~ waits for a device; . is nothing to do",
    ]


def test_it_keeps_to_its_width():
    for pipeline in ("", "pipelined-boundary"):
        lines = text_of(planned(pipeline), width=70).splitlines()
        rows = [line for line in lines if line.startswith(("host", "packer", "trainer  |"))]
        assert rows
        assert max(map(len, rows)) <= 70
